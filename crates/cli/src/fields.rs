//! Shows the settings that library crates name in their messages as flags of the running subcommand.

use clap::{Arg, Command};
use inlane_core::setting::{Field, set_translator};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The fields whose flag has another name in some subcommands: the subcommand as a table of the settings file, the
/// field, and the flag.
///
/// `ntb check` and the processes of `ntb bench` run as PEs. Their messages name the flags of `ntb run`.
const RENAMED: &[(&str, &str, &str)] = &[
    ("forward", "queues", "pipelines"),
    ("offload.serve", "queues", "threads"),
    // Clients name this setting of the engine in their messages.
    ("offload.run", "socket-mode", "socket-mode"),
    ("offload.status", "socket-mode", "socket-mode"),
    ("ntb.check", "heap", "heap"),
    ("ntb.check", "address", "address"),
    ("ntb.check", "transport", "transport"),
];

/// Makes all messages show fields as flags of `subcommand`, a table of the settings file such as `ntb.bench`. A
/// field without a flag there is shown by its name.
pub fn show_as_flags(command: &Command, subcommand: &str) {
    let flags = flags_of(command, subcommand);
    set_translator(Box::new(move |field, value| {
        if let Some((flag, _)) = flags.get(field.name()) {
            lock(&SHOWN).insert(format!("--{flag}"));
        }
        shown(&flags, field, value)
    }));
}

/// Returns the field of a flag of the running subcommand. Use it to name the flag in messages of this crate.
pub fn flag(name: &'static str) -> Field {
    Field::new(name)
}

/// The flags that messages of this process have named.
static SHOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Returns true if a message named this flag.
pub fn was_shown(flag: &str) -> bool {
    lock(&SHOWN).contains(flag)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to write a flag with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Separator {
    Space,
    Equals,
}

/// Returns the flags of a subcommand by the names of their fields.
fn flags_of(command: &Command, subcommand: &str) -> HashMap<String, (String, Separator)> {
    let names = subcommand.split('.').filter(|name| !name.is_empty());
    let found = names.into_iter().try_fold(command, |command, name| command.find_subcommand(name));
    let separator = |argument: &Arg| match argument.is_require_equals_set() {
        true => Separator::Equals,
        false => Separator::Space,
    };
    let global = command.get_arguments().filter(|argument| argument.is_global_set());
    let arguments = found.into_iter().flat_map(Command::get_arguments).chain(global);
    let mut flags: HashMap<_, _> = arguments
        .filter_map(|argument| Some((argument.get_long()?.to_string(), separator(argument))))
        .map(|(long, separator)| (long.clone(), (long, separator)))
        .collect();
    for (_, field, flag) in RENAMED.iter().filter(|(table, ..)| *table == subcommand) {
        let separator = flags.get(*flag).map_or(Separator::Space, |(_, separator)| *separator);
        flags.insert(field.to_string(), (flag.to_string(), separator));
    }
    flags
}

fn shown(flags: &HashMap<String, (String, Separator)>, field: Field, value: Option<&str>) -> String {
    match (flags.get(field.name()), value) {
        (Some((flag, _)), None) => format!("--{flag}"),
        (Some((flag, Separator::Space)), Some(value)) => format!("--{flag} {value}"),
        (Some((flag, Separator::Equals)), Some(value)) => format!("--{flag}={value}"),
        (None, None) => field.name().to_string(),
        (None, Some(value)) => format!("{}={value}", field.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn fields_of_the_libraries_are_flags() {
        use inlane_nvme::field::{OF_BENCHES, OF_INITIATORS, OF_TARGETS, OF_TRANSFERS};
        let initiators = ["nvme.read", "nvme.write", "nvme.bench", "nvme.export.nbd"];
        let lists: &[(&[&str], &[Field])] = &[
            (&["forward"], inlane_forward::field::ALL),
            (&["forward"], inlane_ports::field::ALL),
            (&["model"], inlane_model::field::ALL),
            (&["mix"], inlane_mix::field::ALL),
            (&["copy"], inlane_copy::field::ALL),
            #[cfg(feature = "cuda")]
            (&["forward"], inlane_cuda::field::ALL),
            (&["nvme.target"], OF_TARGETS),
            (&initiators, OF_INITIATORS),
            (&["nvme.read", "nvme.write"], OF_TRANSFERS),
            (&["nvme.bench"], OF_BENCHES),
            (&["nvme.export.nbd"], inlane_nbd::FIELDS),
            #[cfg(feature = "dpdk")]
            (&["forward"], inlane_dpdk::field::ALL),
            (&["copy"], inlane_pci::field::ALL),
            (&["ntb.run"], inlane_ntb::field::OF_JOBS),
            (&["ntb.info", "ntb.check"], inlane_ntb::field::OF_MACHINES),
            (&["ntb.run"], inlane_pgas::field::OF_JOBS),
            (&["ntb.bench"], inlane_pgas::field::OF_BENCHES),
            (&["offload.serve"], &[inlane_process::privileges::USER]),
            (&["offload.serve"], inlane_offload::field::ALL),
            (&["offload.run", "offload.status"], &[inlane_offload::field::SOCKET]),
        ];
        for (subcommands, fields) in lists {
            for (subcommand, field) in
                subcommands.iter().flat_map(|name| fields.iter().map(move |field| (name, field)))
            {
                let flags = flags_of(&crate::Cli::command(), subcommand);
                assert!(flags.contains_key(field.name()), "{subcommand} has no flag for {}", field.name());
            }
        }
    }

    #[test]
    fn fields_are_shown_as_flags_of_the_subcommand() {
        let forward = flags_of(&crate::Cli::command(), "forward");
        let text = |name, value| shown(&forward, Field::new(name), value);
        assert_eq!((text("burst", None), text("config", None)), ("--burst".into(), "--config".into()));
        assert_eq!(text("burst", Some("64")), "--burst 64");
        assert_eq!(text("compete", Some("compute")), "--compete=compute");
        assert_eq!(text("namespace", Some("memory:1G")), "namespace=memory:1G");
        let bench = flags_of(&crate::Cli::command(), "ntb.bench");
        assert_eq!(shown(&bench, Field::new("repeats"), None), "--repeats");
    }
}
