//! A short list.

/// A list whose first item needs no allocation: most layers have one limit.
#[derive(Clone, Debug)]
pub(super) struct Few<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Few<T> {
    pub(super) fn new() -> Self {
        Self { first: None, rest: Vec::new() }
    }

    pub(super) fn one(item: T) -> Self {
        Self { first: Some(item), rest: Vec::new() }
    }

    pub(super) fn push(&mut self, item: T) {
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            self.rest.push(item);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.rest)
    }
}
