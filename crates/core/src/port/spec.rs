//! The syntax of port specifications: `KIND[:ARGUMENT][,KEY=VALUE|,FLAG]...`. [`SpecText`] splits the text.
//! Each kind of port reads its options and then calls [`SpecText::finish`], which refuses unread options.

use crate::error::{Error, Result};
use crate::secret::SECRET;
use std::ops::RangeInclusive;

/// A port specification split into kind, argument and options.
#[derive(Clone, Debug)]
pub struct SpecText<'a> {
    text: &'a str,
    kind: &'a str,
    argument: &'a str,
    /// The options of the specification that the port's kind has not read yet. Each has a key. It also has a
    /// value, unless it is a flag.
    options: Vec<(&'a str, Option<&'a str>)>,
    /// The names of the options that the port's kind has read so far. When [`SpecText::finish`] is called,
    /// these are all options of the kind. Error messages list them.
    known: Vec<&'static str>,
}

impl<'a> SpecText<'a> {
    /// Splits `text`, for example `gen:64,flows=8`.
    ///
    /// # Errors
    /// If an option is empty or given twice.
    pub fn parse(text: &'a str) -> Result<Self> {
        let (first, rest) = match text.split_once(',') {
            Some((first, rest)) => (first, Some(rest)),
            None => (text, None),
        };
        let (kind, argument) = first.split_once(':').unwrap_or((first, ""));
        let mut spec = Self { text, kind, argument, options: Vec::new(), known: Vec::new() };
        for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (part, None),
            };
            if key.is_empty() {
                return Err(spec.error(format!("'{part}' is not an option; give KEY=VALUE after a comma")));
            }
            if spec.options.iter().any(|&(other, _)| other == key) {
                return Err(spec.error(format!("option '{key}' is given twice")));
            }
            spec.options.push((key, value));
        }
        Ok(spec)
    }

    /// Returns the kind of the port that `text` describes. Does not check the rest of `text`.
    pub fn kind_of(text: &str) -> &str {
        text.split([':', ',']).next().unwrap_or_default()
    }

    /// Returns the kind of port: the text before the first colon or comma.
    pub fn kind(&self) -> &'a str {
        self.kind
    }

    /// Returns the text between the first colon and the first comma, or an empty string.
    pub fn argument(&self) -> &'a str {
        self.argument
    }

    /// Returns a usage error that names this port.
    pub fn error(&self, why: impl Into<String>) -> Error {
        Error::port_usage(self.text, why)
    }

    /// Returns true if the flag `name` is present.
    ///
    /// # Errors
    /// If the flag has a value.
    pub fn flag(&mut self, name: &'static str) -> Result<bool> {
        match self.take(name) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(_)) => Err(self.error(format!("'{name}' takes no value; write only '{name}'"))),
        }
    }

    /// Returns true for `name=on`, false for `name=off` or if the option is absent.
    ///
    /// # Errors
    /// If the value is neither `on` nor `off`.
    pub fn switch(&mut self, name: &'static str) -> Result<bool> {
        let value = self.option(name, |value| match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(format!("choose one of {name}=on, {name}=off")),
        });
        Ok(value?.unwrap_or(false))
    }

    /// Returns the value of option `key`, converted by `read`, or `None` if the option is absent.
    ///
    /// # Errors
    /// If the option has no value, or `read` refuses it.
    pub fn option<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&'a str) -> Result<T, String>,
    ) -> Result<Option<T>> {
        match self.take(key) {
            None => Ok(None),
            Some(None) => Err(self.error(format!("'{key}' needs a value; give {key}=VALUE"))),
            Some(Some(value)) => {
                let shown = if key == SECRET { "***" } else { value };
                read(value).map(Some).map_err(|why| self.error(format!("{key}={shown}: {why}")))
            }
        }
    }

    /// Returns the whole number of option `key`, within `range`. Underscores may group its digits.
    ///
    /// # Errors
    /// As for [`SpecText::option`].
    pub fn number<T: TryFrom<u64>>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<T>> {
        self.option(key, |value| Self::read_number(value, range))
    }

    /// Returns the whole number that the argument gives, or `default` if there is no argument. `what` names
    /// the number in errors.
    ///
    /// # Errors
    /// If the argument is not a whole number within `range`.
    pub fn argument_number<T: TryFrom<u64>>(
        &self,
        what: &str,
        default: T,
        range: RangeInclusive<u64>,
    ) -> Result<T> {
        if self.argument.is_empty() {
            return Ok(default);
        }
        Self::read_number(self.argument, range)
            .map_err(|why| self.error(format!("{what} '{}': {why}", self.argument)))
    }

    fn read_number<T: TryFrom<u64>>(value: &str, range: RangeInclusive<u64>) -> Result<T, String> {
        let number = value.replace('_', "").parse::<u64>().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
    }

    /// Checks that every option of the specification was read. Call this last. An option that was not read
    /// does not exist for this kind of port.
    ///
    /// # Errors
    /// Names the first unread option, and the options of this kind of port.
    pub fn finish(self) -> Result<()> {
        let Some((key, _)) = self.options.first() else { return Ok(()) };
        let known = match self.known.as_slice() {
            [] => format!("{} ports have no options", self.kind),
            known => format!("{} ports have: {}", self.kind, known.join(", ")),
        };
        Err(self.error(format!("unknown option '{key}'; {known}")))
    }

    fn take(&mut self, name: &'static str) -> Option<Option<&'a str>> {
        self.known.push(name);
        let index = self.options.iter().position(|&(key, _)| key == name)?;
        Some(self.options.remove(index).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_argument_and_options_are_split() {
        let mut spec = SpecText::parse("gen:64,flows=8,v6,copy=on,mac=02:00:00:00:00:01").unwrap();
        assert_eq!((spec.kind(), spec.argument()), ("gen", "64"));
        assert_eq!((spec.flag("v6").unwrap(), spec.flag("tcp").unwrap()), (true, false));
        assert_eq!(spec.number::<u8>("flows", 1..=10).unwrap(), Some(8));
        assert_eq!(spec.number::<u64>("seed", 0..=9).unwrap(), None);
        assert_eq!((spec.switch("copy").unwrap(), spec.switch("bypass").unwrap()), (true, false));
        let mac = spec.option("mac", |value| Ok(value.len())).unwrap();
        assert_eq!(mac, Some(17), "a colon in an option does not end the kind");
        spec.finish().unwrap();
    }

    #[test]
    fn an_argument_is_optional() {
        let spec = SpecText::parse("null").unwrap();
        assert_eq!(spec.argument_number("size", 64u16, 14..=65000).unwrap(), 64);
        let spec = SpecText::parse("null:1_000").unwrap();
        assert_eq!(spec.argument_number("size", 64u16, 14..=65000).unwrap(), 1000);
        assert!(spec.argument_number("size", 64u8, 1..=10).is_err());
    }

    #[test]
    fn errors_name_the_port_the_option_and_the_remedy() {
        let error = |text: &str, read: fn(&mut SpecText) -> Result<()>| {
            let mut spec = SpecText::parse(text)?;
            read(&mut spec)?;
            spec.finish()
        };
        for (text, expected) in [
            ("gen:64,flows=0", "port gen:64,flows=0: flows=0: give a whole number from 1 to 10"),
            ("gen:64,flows", "'flows' needs a value"),
            ("gen:64,v6=1", "'v6' takes no value"),
            ("gen:64,copy=yes", "choose one of copy=on, copy=off"),
            ("gen:64,v6,v6", "option 'v6' is given twice"),
            ("gen:64,", "'' is not an option"),
            ("gen:64,=3", "'=3' is not an option"),
            ("gen:64,x", "unknown option 'x'; gen ports have: flows, v6, copy"),
        ] {
            let read = |spec: &mut SpecText| {
                spec.number::<u64>("flows", 1..=10)?;
                spec.flag("v6")?;
                spec.switch("copy")?;
                Ok(())
            };
            let found = error(text, read).unwrap_err().to_string();
            assert!(found.contains(expected), "{text}: {found}");
        }
    }

    #[test]
    fn no_message_shows_a_secret() {
        let mut spec = SpecText::parse("memif:/a,secret=hidden").unwrap();
        let refused = spec.option("secret", |_| Err::<(), _>("it is too long".into())).unwrap_err();
        assert_eq!(refused.to_string(), "port memif:/a,secret=***: secret=***: it is too long");
        let twice = SpecText::parse("memif:/a,secret=hidden,secret=hidden").unwrap_err().to_string();
        assert!(!twice.contains("hidden"), "{twice}");
    }

    #[test]
    fn a_kind_without_options_refuses_all_of_them() {
        for text in ["null,foo=bar", "check,foo=1", "check,foo"] {
            let found = SpecText::parse(text).unwrap().finish().unwrap_err().to_string();
            assert!(found.contains("unknown option 'foo'") && found.contains("have no options"), "{found}");
        }
        assert_eq!(SpecText::kind_of("null,foo=bar"), "null");
        assert_eq!(SpecText::kind_of("pcap:a:b"), "pcap");
    }
}
