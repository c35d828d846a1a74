//! Draws the tree of PCI functions as SVG: a line for each link, as thick as it is wide, and links below their best marked.

use super::{Entry, Topology, memory_node, what};
use inlane_core::units;
use inlane_pci::Address;
use inlane_report::escaped;
use std::collections::HashMap;
use std::fmt::Write;

/// The height of a row in pixels.
const ROW: usize = 34;
/// How far a function lies to the right of the bridge above it, in pixels. A link's rate fits above its line.
const STEP: usize = 88;
/// The margin around the tree in pixels.
const MARGIN: usize = 16;
/// The estimated width of a character in pixels.
const LETTER: usize = 7;

const STYLE: &str = "<style>\
text { font: 13px system-ui, sans-serif; fill: #1a1a1a } .title { font-size: 17px; font-weight: 600 } .node { font-weight: 600 } \
.small { font-size: 11px; fill: #555 } .link { stroke: #7a7a7a; fill: none } .rail { stroke: #c4c4c4; fill: none } \
.end { fill: #0072b2 } .bridge { fill: #7a7a7a } .page { fill: #fff } \
.link.short { stroke: #d55e00; stroke-dasharray: 7 4 } text.short { fill: #a84300; font-weight: 600 } \
@media (prefers-color-scheme: dark) { text { fill: #e6e6e6 } .small { fill: #a8a8a8 } .page { fill: #16181d } \
.rail { stroke: #4a4a4a } .end { fill: #4da3ff } text.short { fill: #ff9a55 } .link.short { stroke: #ff9a55 } }</style>";

/// Draws the functions in `shown`, in which each bridge stands before the functions below it. `source` names the machine. Returns
/// `None` if there are no functions.
pub fn picture(topology: &Topology, shown: &[&Entry], source: &str) -> Option<String> {
    if shown.is_empty() {
        return None;
    }
    let mut drawing =
        Drawing { body: String::new(), y: MARGIN + 14, width: 0, heading: 0, places: HashMap::new() };
    drawing.words("title", MARGIN, "PCI functions and their links");
    let mut last = None;
    for (node, tree) in trees(shown) {
        if last != Some(node) {
            last = Some(node);
            drawing.y += ROW;
            let known = topology.nodes.iter().find(|known| Some(known.node) == node);
            let words = known.map_or("NUMA node unknown".into(), memory_node);
            drawing.words("node", MARGIN, &words);
            drawing.heading = drawing.y + 10;
        }
        tree.iter().for_each(|entry| drawing.function(entry));
    }
    drawing.y += ROW;
    let legend =
        "line: link, as thick as it is wide; dashed and marked with !: slower than the device supports";
    drawing.words("small", MARGIN, legend);
    drawing.y += ROW / 2;
    drawing.words("small", MARGIN, source);
    let Drawing { body, y, width, .. } = drawing;
    let (width, height) = (width + MARGIN, y + MARGIN);
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n{STYLE}\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    ))
}

/// Divides the functions into the trees below the root complexes, in the order of their NUMA nodes.
fn trees<'a>(shown: &[&'a Entry]) -> Vec<(Option<u32>, Vec<&'a Entry>)> {
    let mut trees: Vec<(Option<u32>, Vec<&Entry>)> = Vec::new();
    for &entry in shown {
        match trees.last_mut() {
            Some((node, tree)) if entry.depth > 0 => {
                *node = node.or(entry.device.numa_node);
                tree.push(entry);
            }
            _ => trees.push((entry.device.numa_node, vec![entry])),
        }
    }
    trees.sort_by_key(|(node, _)| node.unwrap_or(u32::MAX));
    trees
}

struct Drawing {
    body: String,
    /// The height of the current row's middle.
    y: usize,
    /// The right end of everything that was drawn.
    width: usize,
    /// The lower end of the current heading, where the line of its functions begins.
    heading: usize,
    /// Where the drawn functions are.
    places: HashMap<Address, (usize, usize)>,
}

impl Drawing {
    fn words(&mut self, class: &str, x: usize, words: &str) {
        let size = if class == "title" { LETTER + 3 } else { LETTER };
        self.width = self.width.max(x + size * words.chars().count());
        let _ = writeln!(
            self.body,
            "<text class=\"{class}\" x=\"{x}\" y=\"{}\">{}</text>",
            self.y + 4,
            escaped(words)
        );
    }

    /// Draws a function in the next row, and its link to the bridge above.
    fn function(&mut self, entry: &Entry) {
        let device = &entry.device;
        self.y += ROW;
        let (x, y) = (MARGIN + 6 + STEP * (entry.depth + 1), self.y);
        // A function below a root complex hangs on the line of its NUMA node.
        let above = device.parent.and_then(|parent| self.places.get(&parent).copied());
        let (from, top) = above.unwrap_or((x - STEP, self.heading));
        let _ = writeln!(self.body, "<path class=\"rail\" d=\"M{from} {top}V{y}\"/>");
        let short = entry.shortfall.as_ref();
        let (class, thick) =
            (if short.is_some() { " short" } else { "" }, device.link.map_or(1.0, thickness));
        let _ = writeln!(
            self.body,
            "<path class=\"link{class}\" stroke-width=\"{thick}\" d=\"M{from} {y}H{x}\"/>"
        );
        let shape = if entry.is_endpoint() { "end" } else { "bridge" };
        let _ = writeln!(self.body, "<circle class=\"{shape}\" cx=\"{x}\" cy=\"{y}\" r=\"6\"/>");
        if let Some(link) = device.link {
            let (class, mark) = if short.is_some() { ("small short", " !") } else { ("small", "") };
            self.y = y - 11;
            self.words(class, from + 8, &format!("{}{mark}", link.current));
        }
        let mut words = format!("{}  {}", device.address, what(device));
        let named = entry.name.iter().chain(&device.names).map(String::as_str).collect::<Vec<_>>();
        if !named.is_empty() {
            let _ = write!(words, ", {}", named.join(", "));
        }
        if let (Some(ceiling), true) = (entry.ceiling_payload_bytes_per_second, entry.is_endpoint()) {
            let _ = write!(words, "; at most {}", units::bytes_per_second(ceiling));
        }
        self.y = y;
        self.words("name", x + 12, &words);
        if let Some(short) = short {
            self.y = y + 14;
            self.words("small short", x + 12, &short.to_string());
        }
        self.y = y;
        self.places.insert(device.address, (x, y + 6));
    }
}

/// Returns the width of a link's line in pixels.
fn thickness(link: inlane_pci::link::Link) -> f64 {
    1.0 + f64::from(link.current.lanes) / 3.0
}
