//! Takes numbers, choices and bytes from the fuzzer's input bytes.

/// The unread rest of the fuzzer's input. Once the rest is empty, all further numbers are 0.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn number(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    /// Returns one of `choices`, selected by the next byte of the input. Returns the first one if the input
    /// has ended.
    pub(crate) fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Takes one byte of the input to choose a number. For most values of the byte, returns a number near
    /// `base`. For one value, returns an arbitrary number.
    pub(crate) fn near(&mut self, base: u32) -> u32 {
        match self.byte() {
            255 => self.number(),
            254 => base.wrapping_add(self.number() % 200_000),
            253 => base.wrapping_sub(self.number() % 200_000),
            small @ 0..128 => base.wrapping_add(small.into()),
            small => base.wrapping_sub(u32::from(small) - 127),
        }
    }
}
