//! The limiters of a mesh, by name.

use std::{
    collections::HashMap,
    sync::{OnceLock, PoisonError, RwLock},
};

use crate::{config::MAX_LIMITS, limiter::Limiter};

/// Names of limits that one mesh can have had in its life.
const MAX_EVER: usize = 4 * MAX_LIMITS;

/// The limiters that a mesh has, and has had: one that its configuration has no more is kept for who may hold a reference
/// to it, and for when the configuration has it again.
pub(super) struct Limiters {
    ever: Box<[OnceLock<Box<Limiter>>]>,
    places: RwLock<Places>,
}

#[derive(Default)]
struct Places {
    /// The limits that the configuration has.
    current: HashMap<String, usize>,
    /// All, by their names.
    ever: HashMap<String, usize>,
    count: usize,
}

impl Limiters {
    pub(super) fn new(limiters: impl Iterator<Item = Limiter>) -> Self {
        let all = Self { ever: (0..MAX_EVER).map(|_| OnceLock::new()).collect(), places: RwLock::default() };
        all.replace(limiters);
        all
    }

    pub(super) fn get(&self, name: &str) -> Option<&Limiter> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        self.at(*places.current.get(name)?)
    }

    /// The limiter that has or had this name.
    pub(super) fn former(&self, name: &str) -> Option<&Limiter> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        self.at(*places.ever.get(name)?)
    }

    fn at(&self, place: usize) -> Option<&Limiter> {
        self.ever.get(place)?.get().map(|limiter| &**limiter)
    }

    /// How many more limiters there can be that have never been here.
    pub(super) fn room(&self) -> usize {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        MAX_EVER.saturating_sub(places.count)
    }

    /// From now on these are the mesh's limiters: former ones, or new ones.
    pub(super) fn replace(&self, limiters: impl Iterator<Item = Limiter>) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        places.current.clear();
        for limiter in limiters {
            let name = limiter.limit().name().to_owned();
            let same = |place: &usize| self.at(*place).is_some_and(|former| former.is_same(&limiter));
            let place = places.ever.get(&name).copied().filter(same).unwrap_or(places.count);
            if let Some(free) = self.ever.get(place) {
                free.get_or_init(|| Box::new(limiter));
                places.count = places.count.max(place + 1);
                places.ever.insert(name.clone(), place);
                places.current.insert(name, place);
            }
        }
    }
}
