//! Refuses a specification whose kind of port does not exist, and suggests what may be meant.

use super::kinds::Kind;
use inlane_core::Error;
use inlane_core::port::spec::SpecText;
use std::path::Path;

/// Returns the error for a specification whose kind does not exist.
pub(super) fn unknown(text: &str) -> Error {
    let kind = SpecText::kind_of(text);
    let kinds = Kind::names().join(", ");
    let meant = meant(text).map(|meant| format!("did you mean {meant}? ")).unwrap_or_default();
    Error::port_usage(text, format!("'{kind}' is not a kind of port; {meant}choose one of {kinds}"))
}

/// Suggests port specifications to replace `text`, whose kind of port is unknown. `text` may be a network interface,
/// a PCI address or a misspelt kind. Returns `None` for other texts.
fn meant(text: &str) -> Option<String> {
    let (port, options) = text.split_at(text.find(',').unwrap_or(text.len()));
    let name_of = |kind: Kind| kind.properties().name;
    let is_hex =
        |text: &str, digits: usize| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_slot = |text: &str| {
        text.split_once('.').is_some_and(|(device, function)| is_hex(device, 2) && is_hex(function, 1))
    };
    let card = name_of(Kind::Pci);
    match port.split(':').collect::<Vec<_>>()[..] {
        [domain, bus, slot] if is_hex(domain, 4) && is_hex(bus, 2) && is_slot(slot) => {
            Some(format!("{card}:{port}{options}"))
        }
        [bus, slot] if is_hex(bus, 2) && is_slot(slot) => Some(format!("{card}:0000:{port}{options}")),
        [interface] if looks_like_interface(interface) => {
            let (xdp, packet) = (name_of(Kind::AfXdp), name_of(Kind::AfPacket));
            Some(format!("{xdp}:{interface}{options} or {packet}:{interface}{options}"))
        }
        [kind, ..] => {
            let near = inlane_core::names::similar(kind, Kind::names()).into_iter().next();
            near.map(|known| format!("{known}{}", &text[kind.len()..]))
        }
        [] => None,
    }
}

/// Returns true if this machine has a network interface with this name. Also returns true if the name looks
/// like that of a Linux interface.
fn looks_like_interface(name: &str) -> bool {
    let prefixes = ["eth", "en", "veth", "br", "bond", "wl", "ib", "virbr", "docker", "vlan", "dummy"];
    let numbered = name.ends_with(|last: char| last.is_ascii_digit());
    let is_name =
        name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/') && (1..16).contains(&name.len());
    is_name
        && (numbered && prefixes.iter().any(|prefix| name.starts_with(prefix))
            || Path::new("/sys/class/net").join(name).is_dir() && ![".", ".."].contains(&name))
}
