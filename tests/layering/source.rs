//! Reads Rust files just well enough for the checks: words and braces, without comments, literals and tests.

use std::{collections::BTreeMap, fs, path::Path};

/// A Rust file without its comments, literals and test modules: without any code where the whole file is tests, which its
/// name says (`tests/…`, `tests.rs`, `…_tests.rs`).
pub(crate) struct Source {
    pub(crate) path: String,
    /// The top-level module that it is part of.
    pub(crate) module: String,
    /// How many modules it is deep: 1 for `src/table.rs` and `src/gossip/mod.rs`, 2 for `src/gossip/peer.rs`.
    depth: usize,
    pub(crate) lines: usize,
    pub(crate) tokens: Vec<Token>,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let inner = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
        let mut parts = inner.split('/');
        let module = parts.next().unwrap_or_default().to_owned();
        let depth = 1 + parts.count();
        let all_tests = inner.split('/').any(|part| part == "tests" || part.ends_with("_tests"));
        let tokens = if all_tests { Vec::new() } else { without_tests(&tokens(text)) };
        Self { path: path.to_owned(), module, depth, lines: text.lines().count(), tokens }
    }

    /// The top-level modules (or root items) that are named, by `crate::x`, `crate::{x, y}`, or enough `super::`.
    pub(crate) fn imports(&self) -> Vec<(String, usize)> {
        let mut found = Vec::new();
        // For each open brace, whether it opened an inline module, inside which `super` means one level less.
        let mut braces: Vec<bool> = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            match self.text(at) {
                "{" => braces.push(at >= 2 && self.text(at - 2) == "mod"),
                "}" => {
                    braces.pop();
                }
                "crate" | "super" if self.text(at + 1) == "::" && (at == 0 || self.text(at - 1) != "::") => {
                    let depth = self.depth + braces.iter().filter(|inline| **inline).count();
                    let mut supers = 0;
                    let from_root = self.text(at) == "crate";
                    while self.text(at) == "super" && self.text(at + 1) == "::" {
                        supers += 1;
                        at += 2;
                    }
                    if from_root {
                        at += 2;
                    }
                    if from_root || supers >= depth {
                        self.first_segments(at, &mut found);
                    }
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        found
    }

    /// The path segment at `at`, or the first ones of each path in a `{…}` group there.
    fn first_segments(&self, at: usize, found: &mut Vec<(String, usize)>) {
        if self.text(at) != "{" {
            found.extend(self.tokens.get(at).map(|token| (token.text.clone(), token.line)));
            return;
        }
        let mut depth = 0;
        for (place, token) in self.tokens.iter().enumerate().skip(at) {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ if depth == 1 && ["{", ","].contains(&self.text(place - 1)) => {
                    found.push((token.text.clone(), token.line));
                }
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Name, first line and number of lines of each function that has a body.
    pub(crate) fn functions(&self) -> Vec<(String, usize, usize)> {
        let mut found = Vec::new();
        for (at, token) in self.tokens.iter().enumerate().filter(|(_, token)| token.text == "fn") {
            let named = self.text(at + 1).starts_with(|c: char| c.is_alphabetic() || c == '_');
            if let Some(end) = item_end(&self.tokens, at).filter(|_| named) {
                let lines = self.tokens[end].line - token.line + 1;
                found.push((self.text(at + 1).to_owned(), token.line, lines));
            }
        }
        found
    }

    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &token.text)
    }
}

/// The place of the token that ends the item that begins at `start`: its `;` or closing brace.
fn item_end(tokens: &[Token], start: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            ";" if depth == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// Drops every item under `#[cfg(test)]`.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let attribute = tokens[at].text == "#" && tokens.get(at + 1).is_some_and(|next| next.text == "[");
        let end = if attribute { closing(tokens, at + 1) } else { at };
        let words: Vec<_> = tokens[at..=end].iter().map(|token| token.text.as_str()).collect();
        if attribute && words[2] == "cfg" && words.contains(&"test") && !words.contains(&"not") {
            at = item_end(tokens, end + 1).map_or(tokens.len(), |end| end + 1);
        } else {
            kept.extend_from_slice(&tokens[at..=end]);
            at = end + 1;
        }
    }
    kept
}

/// The place of the bracket that closes the one at `open`.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "[" => depth += 1,
            "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}

/// Words, `::` and single signs; comments are dropped, and literals become `""`.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let first = chars[at];
        let next = chars.get(at + 1).copied().unwrap_or(' ');
        let (end, text) = match first {
            _ if first.is_whitespace() => (at + 1, None),
            '/' if next == '/' => (find(&chars, at, |c| c == '\n'), None),
            '/' if next == '*' => (comment_end(&chars, at), None),
            '"' => (string_end(&chars, at), Some("\"\"".to_owned())),
            '\'' => match char_end(&chars, at) {
                Some(end) => (end, Some("\"\"".to_owned())),
                None => (at + 1, None),
            },
            ':' if next == ':' => (at + 2, Some("::".to_owned())),
            _ if first.is_alphanumeric() || first == '_' => {
                let end = find(&chars, at, |c| !c.is_alphanumeric() && c != '_');
                let word: String = chars[at..end].iter().collect();
                match raw_string_end(&chars, &word, end) {
                    Some(end) => (end, Some("\"\"".to_owned())),
                    None => (end, Some(word)),
                }
            }
            _ => (at + 1, Some(first.to_string())),
        };
        found.extend(text.map(|text| Token { text, line }));
        line += chars[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    found
}

fn find(chars: &[char], from: usize, stop: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|c| stop(*c)).map_or(chars.len(), |ahead| from + ahead)
}

fn comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < chars.len() {
        let step = match (chars[at], chars[at + 1]) {
            ('/', '*') => 1,
            ('*', '/') => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The end of a raw string whose prefix (`r`, `br`, `cr`) ends at `at`.
fn raw_string_end(chars: &[char], prefix: &str, at: usize) -> Option<usize> {
    let quote = find(chars, at, |c| c != '#');
    if !["r", "br", "cr"].contains(&prefix) || chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - at;
    let ends = |end: &usize| {
        chars[*end] == '"' && chars[*end + 1..].iter().take_while(|c| **c == '#').count() >= hashes
    };
    let end = (quote + 1..chars.len()).find(ends)?;
    Some(end + 1 + hashes)
}

/// The end of a character literal; `None` for a lifetime or a label.
fn char_end(chars: &[char], start: usize) -> Option<usize> {
    if chars.get(start + 1) == Some(&'\\') {
        return Some((find(chars, start + 3, |c| c == '\'') + 1).min(chars.len()));
    }
    (chars.get(start + 2) == Some(&'\'')).then_some(start + 3)
}

/// Every Rust file under a folder of the crate.
pub(crate) fn sources(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = BTreeMap::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.insert(relative(root, &path), fs::read_to_string(&path).unwrap());
            }
        }
    }
    files.iter().map(|(path, text)| Source::new(path, text)).collect()
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/")
}
