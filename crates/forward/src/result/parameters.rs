//! The parameters of a run, with units, such as burst and size. They distinguish the runs of one result.

use inlane_core::units::Rate;
use inlane_result::{Quantity, Value};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;

/// The parameters that distinguish a run from other runs in the same result, such as burst and method. In
/// JSON, they are one object. Its keys contain the units: `flush_ns`, `size_bytes`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(Vec<(String, Value)>);

impl Parameters {
    /// Sets a parameter. Replaces its earlier value.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.into(), value)),
        }
    }

    /// Returns a parameter's value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns the parameters in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<N: Into<String>, V: Into<Value>> FromIterator<(N, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(parameters: I) -> Self {
        Self(parameters.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Serialize for Parameters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            let name = name.replace('-', "_");
            let Some(quantity) = value.quantity() else {
                map.serialize_entry(&name, &value.to_string())?;
                continue;
            };
            let key = name + quantity.key_suffix();
            let number = quantity.number();
            match quantity {
                Quantity::Rate(Rate::Bits(rate) | Rate::Line(rate) | Rate::Packets(rate)) => {
                    map.serialize_entry(&key, &rate)?;
                }
                // Other whole numbers are written without a fraction: 64, not 64.0.
                _ if number.fract() == 0.0 && number.abs() < 9e15 => {
                    map.serialize_entry(&key, &(number as i64))?
                }
                _ => map.serialize_entry(&key, &number)?,
            }
        }
        map.end()
    }
}

impl JsonSchema for Parameters {
    fn schema_name() -> Cow<'static, str> {
        "Parameters".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The parameters that distinguish this run from its neighbours. A key with a unit has a number: `flush_ns`, `size_bytes`, `rate_packets_per_second`.",
            "type": "object",
            "additionalProperties": { "type": ["string", "number"] },
            "patternProperties": {
                "_(ns|bytes|percent|bits_per_second|packets_per_second)$": { "type": "number" },
                "^(burst|slots|workers|pipelines|blocks|threads|streams)$": { "type": "integer" }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_become_numbers_with_their_unit_in_the_key() {
        let mut parameters = Parameters::default();
        for (name, quantity) in [
            ("burst", Quantity::Number(64.0)),
            ("work", Quantity::Time(50.0)),
            ("rate", Quantity::packets_per_second(1.5e6)),
            ("header-split", Quantity::Bytes(128)),
            ("load", Quantity::Percent(12.5)),
        ] {
            parameters.set(name, quantity);
        }
        parameters.set("method", "split");
        let json = serde_json::to_string(&parameters).unwrap();
        assert_eq!(
            json,
            r#"{"burst":64,"work_ns":50,"rate_packets_per_second":1500000.0,"header_split_bytes":128,"load_percent":12.5,"method":"split"}"#
        );
    }
}
