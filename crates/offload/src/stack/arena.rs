//! A table of objects that are found by keys. The key of a removed object stays invalid, even if another
//! object takes its place (a generational arena).

/// The key of an object in the table: the object's index, and how many earlier objects had this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the key as a number.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the object's index in the table.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Returns the key that [`Key::to_u64`] has turned into `number`.
    pub fn from_u64(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// A table of objects.
#[derive(Debug)]
pub struct Arena<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    /// Adds the object that `make` returns. `make` gets the object's key.
    pub fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        let key = Key { index, generation: entry.0 };
        entry.1 = Some(make(key));
        key
    }

    /// Returns an object, or `None` if it was removed.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&T> {
        let (generation, object) = self.entries.get(key.index as usize)?;
        object.as_ref().filter(|_| *generation == key.generation)
    }

    /// Returns an object for writing, or `None` if it was removed.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, object) = self.entries.get_mut(key.index as usize)?;
        object.as_mut().filter(|_| *generation == key.generation)
    }

    /// Removes an object.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let (generation, object) = self.entries.get_mut(key.index as usize)?;
        if *generation != key.generation {
            return None;
        }
        let object = object.take()?;
        // The generation is the high half of the key's number. Keep its top bit 0, because epoll tokens with
        // this bit are not keys of sockets.
        *generation = generation.wrapping_add(1) & 0x7fff_ffff;
        self.free.push(key.index);
        Some(object)
    }

    /// Returns the objects with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries.iter().zip(0u32..).filter_map(|((generation, object), index)| {
            Some((Key { index, generation: *generation }, object.as_ref()?))
        })
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_place_has_another_key() {
        let mut arena = Arena::default();
        let first = arena.insert_with(|_| "first");
        assert_eq!(arena.remove(first), Some("first"));
        let second = arena.insert_with(|_| "second");
        assert_eq!(arena.get(first), None);
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.get(Key::from_u64(second.to_u64())), Some(&"second"));
        assert_eq!((arena.len(), arena.iter().count()), (1, 1));
        assert_eq!(arena.get(Key::from_u64(u64::MAX)), None);
    }
}
