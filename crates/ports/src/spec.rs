//! How ports are written: `NAME:VALUE,key=value,flag`.

use inlane_core::{Error, Result};

/// The parts of a port's text behind its name, taken one by one; what nobody took is an error.
pub struct Spec<'a> {
    text: &'a str,
    value: &'a str,
    options: Vec<(&'a str, Option<&'a str>)>,
    known: Vec<&'static str>,
}

impl<'a> Spec<'a> {
    /// Takes `text` (`gen:64,flows=8`) apart.
    pub fn parse(text: &'a str) -> Self {
        let rest = text.split_once(':').map_or("", |(_, rest)| rest);
        let mut parts = rest.split(',');
        let value = parts.next().unwrap_or_default();
        let options = parts.filter(|part| !part.is_empty()).map(|part| match part.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (part, None),
        });
        Self { text, value, options: options.collect(), known: Vec::new() }
    }

    /// As the user wrote it.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// What stands between the colon and the first comma.
    pub fn value(&self) -> &'a str {
        self.value
    }

    /// A usage error of this port.
    pub fn error(&self, why: impl Into<String>) -> Error {
        Error::port_usage(self.text, why)
    }

    /// True when the flag `name` is there.
    ///
    /// # Errors
    /// When it was given a value.
    pub fn flag(&mut self, name: &'static str) -> Result<bool> {
        match self.remove(name)? {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(_)) => Err(self.error(format!("'{name}' takes no value"))),
        }
    }

    /// The value of `key=`, read by `read`.
    ///
    /// # Errors
    /// When it has none, or `read` does not take it.
    pub fn option<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>> {
        match self.remove(key)? {
            None => Ok(None),
            Some(None) => Err(self.error(format!("'{key}' needs a value: {key}=..."))),
            Some(Some(value)) => {
                read(value).map(Some).map_err(|why| self.error(format!("{key}={value}: {why}")))
            }
        }
    }

    /// The whole number of `key=` within `range`.
    ///
    /// # Errors
    /// As for [`Spec::option`].
    pub fn number(&mut self, key: &'static str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        self.option(key, |value| match value.replace('_', "").parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(format!("give a whole number from {} to {}", range.start(), range.end())),
        })
    }

    /// The time of `key=`, in nanoseconds.
    ///
    /// # Errors
    /// As for [`Spec::option`].
    pub fn time_ns(&mut self, key: &'static str) -> Result<Option<u64>> {
        self.option(key, |value| {
            inlane_core::units::parse_time(value)
                .map(|time| time.as_nanos() as u64)
                .map_err(|error| error.to_string())
        })
    }

    /// The end: fails when an option was given that nobody asked for.
    ///
    /// # Errors
    /// Naming the option, and those that there are.
    pub fn finish(self) -> Result<()> {
        match self.options.first() {
            None => Ok(()),
            Some((key, _)) if self.known.is_empty() => {
                Err(self.error(format!("unknown option '{key}'; it has none")))
            }
            Some((key, _)) => {
                Err(self.error(format!("unknown option '{key}'; there are: {}", self.known.join(", "))))
            }
        }
    }

    fn remove(&mut self, name: &'static str) -> Result<Option<Option<&'a str>>> {
        self.known.push(name);
        let Some(at) = self.options.iter().position(|(key, _)| *key == name) else { return Ok(None) };
        let (_, value) = self.options.remove(at);
        if self.options.iter().any(|(key, _)| *key == name) {
            return Err(self.error(format!("'{name}' is given twice")));
        }
        Ok(Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_apart() {
        let mut spec = Spec::parse("gen:64,flows=8,v6,gap=50us");
        assert_eq!((spec.value(), spec.flag("v6").unwrap(), spec.flag("tcp").unwrap()), ("64", true, false));
        assert_eq!(spec.number("flows", 1..=10).unwrap(), Some(8));
        assert_eq!(spec.time_ns("gap").unwrap(), Some(50_000));
        assert_eq!(spec.number("seed", 0..=9).unwrap(), None);
        spec.finish().unwrap();
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut spec = Spec::parse("gen:64,flows=0,v6=1,x");
        assert!(spec.number("flows", 1..=10).unwrap_err().to_string().contains("from 1 to 10"));
        assert!(spec.flag("v6").unwrap_err().to_string().contains("takes no value"));
        let error = spec.finish().unwrap_err().to_string();
        assert!(error.contains("unknown option 'x'") && error.contains("flows, v6"), "{error}");
        assert!(Spec::parse("gen:64,v6,v6").flag("v6").is_err());
        assert!(Spec::parse("gen:64,flows").number("flows", 1..=2).is_err());
        assert!(Spec::parse("check").finish().is_ok());
    }
}
