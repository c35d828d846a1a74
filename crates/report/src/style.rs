//! Colours of lines, and the style sheet for dark mode.

use plotters::style::RGBColor;

/// Colours that most kinds of colour-blind readers can tell apart (Okabe and Ito, "Color Universal Design",
/// 2008). The last two replace black, which would be invisible in dark mode.
pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(140, 140, 0),
    RGBColor(128, 128, 128),
];

/// Names and their indices into [`COLOURS`]: methods, paths and completion modes keep their colour in every
/// figure.
const FIXED: [(&str, usize); 16] = [
    ("single", 0),
    ("split", 1),
    ("persistent", 2),
    ("stream", 3),
    ("graph", 4),
    ("dma", 0),
    ("sm", 1),
    ("staged", 2),
    ("staged-sm", 3),
    ("p2p", 4),
    ("cpu", 5),
    ("hybrid", 6),
    ("cuda", 7),
    ("poll", 0),
    ("interrupt", 1),
    ("adaptive", 2),
];

/// Chooses an index into [`COLOURS`] for each name:
///
/// * If a name starts with a word of `FIXED`, it gets the colour of that word, unless an earlier name has the
///   colour.
/// * Other names get the free colours in order.
/// * If there are more names than colours, colours repeat.
pub(crate) fn colours(names: &[&str]) -> Vec<usize> {
    let fixed = |name: &str| {
        let word = name.split([',', ' ']).next().unwrap_or(name);
        FIXED.iter().find(|(known, _)| *known == word).map(|(_, colour)| *colour)
    };
    let mut taken: Vec<usize> = Vec::new();
    let mut chosen: Vec<Option<usize>> = Vec::new();
    for name in names {
        let colour = fixed(name).filter(|colour| !taken.contains(colour));
        taken.extend(colour);
        chosen.push(colour);
    }
    let mut free =
        (0..COLOURS.len()).filter(|colour| !taken.contains(colour)).chain((0..COLOURS.len()).cycle());
    chosen.into_iter().map(|colour| colour.or_else(|| free.next()).unwrap_or(0)).collect()
}

/// Returns a colour as SVG writes it, such as `#0072B2`.
pub(crate) fn hexadecimal(index: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[index];
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// The style sheet that adapts a plot to dark mode. In light mode, a plot has a white background and is
/// readable on any page.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) {\
    rect[fill=\"#FFFFFF\"] { fill: #16181d } text { fill: #e6e6e6 } \
    [stroke=\"#FFFFFF\"] { stroke: #16181d } [stroke=\"#000000\"] { stroke: #c8c8c8 } \
    [fill=\"#000000\"] { fill: #e6e6e6 } [stroke=\"#0072B2\"] { stroke: #4da3ff } [fill=\"#0072B2\"] { fill: #4da3ff } }</style>";

/// Inserts the style sheet after the opening tag of the SVG.
pub(crate) fn with_dark_mode(svg: &str) -> String {
    match svg.split_once(">\n") {
        Some((tag, rest)) => format!("{tag}>\n{DARK}\n{rest}"),
        None => svg.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_has_the_same_colour_in_every_figure() {
        assert_eq!(colours(&["split", "graph"]), [1, 4]);
        assert_eq!(colours(&["single", "split", "stream"]), [0, 1, 3]);
        assert_eq!(colours(&["staged, poll", "p2p"]), [2, 4]);
    }

    #[test]
    fn other_names_take_free_colours() {
        assert_eq!(colours(&["burst 16", "split", "burst 32"]), [0, 1, 2]);
        assert_eq!(colours(&["single, burst 16", "single, burst 32"]), [0, 1]);
        let many: Vec<String> = (0..12).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(colours(&many)[..9], [0, 1, 2, 3, 4, 5, 6, 7, 0]);
    }
}
