/* Browsers refuse workers to pages that are opened from disk. There, run the search's worker in a hidden frame.
   This file and its class have the names that Material for MkDocs looks for. */
"use strict";

if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.receive = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise(resolve => { this.frame.onload = resolve; });
      this.frame.srcdoc = `<script>postMessage = data => frameElement.receive(data)</script>
        <body><script src="${url}"></script>`;
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}
