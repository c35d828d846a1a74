//! The names of settings in messages.
//!
//! A library names a setting by its field, because it cannot know how its caller sets it: by a flag, a key of a
//! file or a field of a structure. A program can install a translator, which shows each field as its users know it.
//! The `inlane` command shows flags.

use std::fmt;
use std::sync::OnceLock;

/// The name of a setting, as it appears in messages: `give a longer {TIMEOUT}`.
///
/// ```
/// use inlane_core::setting::Field;
///
/// const TIMEOUT: Field = Field::new("timeout");
/// assert_eq!(format!("raise {TIMEOUT}"), "raise timeout");
/// assert_eq!(format!("try {}", TIMEOUT.with("5s")), "try timeout=5s");
/// ```
// Documents contain the name without translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", schemars(description = "The name of a setting."))]
pub struct Field(&'static str);

impl Field {
    /// Creates a field. `name` consists of lower-case words joined by `-`.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Returns the name without translation.
    pub const fn name(self) -> &'static str {
        self.0
    }

    /// Returns the field with a value. Use it where a message repeats the value or proposes one.
    pub fn with(self, value: impl fmt::Display) -> FieldValue {
        FieldValue { field: self, value: value.to_string() }
    }
}

/// A field with a value, as it appears in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldValue {
    field: Field,
    value: String,
}

/// A setting whose values have names.
///
/// ```
/// use inlane_core::setting::Choice;
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Speed {
///     Slow,
///     Fast,
/// }
///
/// impl Choice for Speed {
///     const CHOICES: &[(Self, &str, &str)] =
///         &[(Speed::Slow, "slow", "As slow as possible"), (Speed::Fast, "fast", "As fast as possible")];
/// }
/// assert_eq!(Speed::Fast.name(), "fast");
/// assert_eq!(Speed::named("slow"), Some(Speed::Slow));
/// ```
pub trait Choice: Copy + PartialEq + Send + Sync + 'static {
    /// All values, each with its name and a line of help.
    const CHOICES: &'static [(Self, &'static str, &'static str)];

    /// Returns the name of this value.
    ///
    /// # Panics
    /// If [`CHOICES`](Self::CHOICES) lacks the value.
    fn name(self) -> &'static str {
        Self::CHOICES.iter().find(|(value, ..)| *value == self).expect("the list has all values").1
    }

    /// Returns the value with this name.
    fn named(name: &str) -> Option<Self> {
        Self::CHOICES.iter().find(|(_, known, _)| *known == name).map(|(value, ..)| *value)
    }
}

/// Translates a field, with its value if the message gives one, to the text that users of the program know.
pub type Translator = Box<dyn Fn(Field, Option<&str>) -> String + Send + Sync>;

static TRANSLATOR: OnceLock<Translator> = OnceLock::new();

/// Sets how all messages of this process show fields. Only the first call has an effect. Call it before the first
/// message is made, because libraries may format a message when they create the error.
pub fn set_translator(translator: Translator) {
    let _ = TRANSLATOR.set(translator);
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TRANSLATOR.get() {
            Some(translate) => f.write_str(&translate(*self, None)),
            None => f.write_str(self.0),
        }
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TRANSLATOR.get() {
            Some(translate) => f.write_str(&translate(self.field, Some(&self.value))),
            None => write!(f, "{}={}", self.field.0, self.value),
        }
    }
}

impl From<Field> for String {
    fn from(field: Field) -> Self {
        field.to_string()
    }
}

impl From<FieldValue> for String {
    fn from(field: FieldValue) -> Self {
        field.to_string()
    }
}

/// What an error is about: a setting, with or without its value, or another object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A setting.
    Field(Field),
    /// A setting and its value.
    Value(FieldValue),
    /// Another object, as messages name it.
    Other(String),
}

impl Subject {
    /// Returns the setting. `None` for other objects.
    pub fn field(&self) -> Option<Field> {
        match self {
            Subject::Field(field) => Some(*field),
            Subject::Value(value) => Some(value.field),
            Subject::Other(_) => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Field(field) => field.fmt(f),
            Subject::Value(value) => value.fmt(f),
            Subject::Other(text) => f.write_str(text),
        }
    }
}

impl From<Field> for Subject {
    fn from(field: Field) -> Self {
        Subject::Field(field)
    }
}

impl From<FieldValue> for Subject {
    fn from(value: FieldValue) -> Self {
        Subject::Value(value)
    }
}

impl From<String> for Subject {
    fn from(text: String) -> Self {
        Subject::Other(text)
    }
}

impl From<&String> for Subject {
    fn from(text: &String) -> Self {
        Subject::Other(text.clone())
    }
}

impl From<&str> for Subject {
    fn from(text: &str) -> Self {
        Subject::Other(text.into())
    }
}
