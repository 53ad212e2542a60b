"""How the page looks, on a screen and on paper."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, "Segoe UI", "Liberation Sans", Arial, sans-serif; color: #1c2430;
  background: #fff; max-width: 1180px; margin: 0 auto; padding: 16px 24px 60px; }
h1 { font-size: 17px; font-weight: 600; color: #556070; margin: 0; }
h2 { font-size: 24px; margin: 36px 0 12px; padding-top: 14px; border-top: 3px solid #1c2430;
  overflow-wrap: anywhere; }
h3 { font-size: 17px; margin: 28px 0 8px; }
h4 { font-size: 14px; margin: 10px 0 4px; color: #556070; }
nav a { margin-right: 18px; color: #0059a8; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 3px 14px 3px 0; vertical-align: top; }
th { text-align: left; font-weight: 500; }
thead th { border-bottom: 1.5px solid #8a94a3; color: #556070; }
tbody tr + tr > * { border-top: 1px solid #e6e9ee; }
.figures td, .figures thead th + th { text-align: right; font-variant-numeric: tabular-nums;
  padding-left: 14px; overflow-wrap: anywhere; }
.facts th { color: #556070; }
.facts td { overflow-wrap: anywhere; }
.columns { display: flex; flex-wrap: wrap; gap: 8px 56px; }
.wide { overflow-x: auto; }
.wide table + table { margin-top: 18px; }
.missing { background: #fff4e0; border-left: 4px solid #e69f00; padding: 8px 12px 8px 30px; }
.how { font-size: 13px; color: #556070; margin: 4px 0 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 18px 24px; }
figure { margin: 0; break-inside: avoid; }
figcaption { font-weight: 600; font-size: 14px; margin-bottom: 2px; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 11px; fill: #3b4552; }
svg .grid { stroke: #e6e9ee; }
svg .axis { fill: none; stroke: #8a94a3; }
svg .curve { fill: none; stroke-width: 1.7; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 0 14px; font-size: 12px; margin-left: 44px; }
.legend svg { display: inline-block; width: 22px; height: 10px; margin-right: 5px; }
.diagram .name { font-size: 13px; font-weight: 600; fill: #1c2430; }
.diagram .title { font-size: 12px; fill: #556070; }
.diagram .box { stroke: #8a94a3; fill: #fff; }
.diagram .input { fill: #e3f0fb; stroke: #4a8fc7; }
.diagram .net { fill: #f5f6f8; }
.diagram .trainer { fill: #fff; stroke: #556070; }
.diagram .frozen { fill: #fff; stroke-dasharray: 3 3; }
.diagram .output { fill: #e2f4ec; stroke: #2f9e77; }
.diagram .loss { fill: #fdeadd; stroke: #d5763b; }
.diagram .metric { fill: #f6e8f1; stroke: #b56a96; }
.diagram .label { fill: #fdf6da; stroke: #b39b2e; }
.diagram .unused { fill: #fff; stroke-dasharray: 3 3; }
.diagram .arrow { fill: none; stroke: #7d8794; stroke-width: 1.2; }
.diagram .normalises { stroke-dasharray: 4 3; }
details { margin: 12px 0; }
summary { cursor: pointer; color: #0059a8; font-size: 14px; }
pre { font-size: 12px; overflow-x: auto; background: #f5f6f8; padding: 10px; }
.picture { margin-top: 12px; }
.picture img { max-width: 100%; height: auto; }
@media print {
  body { max-width: none; padding: 0; font-size: 12px; }
  section { break-before: page; }
  section:first-of-type { break-before: auto; }
  h3, h4 { break-after: avoid; }
  pre { white-space: pre-wrap; }
}
"""
