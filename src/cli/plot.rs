//! A picture of one run: what each node and the fleet admitted over time, against the limit, with the faults marked.

use std::{path::Path, time::Duration};

use plotters::{coord::Shift, prelude::*};

use super::Fault;
use crate::sim::{
    Timeline,
    scenario::{Action, Scenario},
};

const SIZE: (u32, u32) = (1_280, 720);
/// Up to this many nodes have a line each; more are stacked.
const MAX_LINES: usize = 8;
/// Steps that a picture has at least, so that half a second is seen in twenty.
const LEAST_STEPS: u32 = 120;
/// Lengths that a step may have, in milliseconds.
const STEPS_MS: [u64; 12] = [10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const FAINT: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
const LIMIT: RGBColor = RGBColor(0xd6, 0x27, 0x28);
/// Colours that differ also for those who see no red or green (after Okabe and Ito).
const NODES: [RGBColor; MAX_LINES] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0xbc, 0xbd, 0x22),
];

type Failed = Box<dyn std::error::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a> = ChartContext<
    'a,
    SVGBackend<'a>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// Runs a scenario under a seed, and draws what came of it into a file.
pub(super) fn draw(scenario: &Scenario, seed: u64, path: &Path) -> Result<(), Fault> {
    let step = step_of(scenario.length);
    let (_, cluster) = scenario.run_with(seed, |cluster| cluster.keep_timeline(step));
    let Some(timeline) = cluster.timeline() else { return Ok(()) };
    let mut text = String::new();
    let picture = Picture::new(scenario, timeline, seed);
    picture
        .draw(&mut text)
        .map_err(|error| Fault::Failed(format!("the picture cannot be drawn: {error}")))?;
    super::simulate::write(path, &text)
}

fn step_of(length: Duration) -> Duration {
    let most = (length / LEAST_STEPS).as_millis() as u64;
    let step = STEPS_MS.iter().rev().find(|step| **step <= most).unwrap_or(&STEPS_MS[0]);
    Duration::from_millis(*step)
}

struct Picture<'s> {
    scenario: &'s Scenario,
    seed: u64,
    step: Duration,
    /// Admitted per second, by node and step.
    nodes: Vec<Vec<f64>>,
    fleet: Vec<f64>,
    limit: f64,
    top: f64,
    marks: Vec<Mark>,
}

/// A fault, or its end.
struct Mark {
    at: f64,
    label: String,
    colour: RGBColor,
}

impl<'s> Picture<'s> {
    fn new(scenario: &'s Scenario, timeline: &Timeline, seed: u64) -> Self {
        let step = timeline.step();
        let count = (scenario.length.as_secs_f64() / step.as_secs_f64()).ceil() as usize;
        let per_second = |units: Option<&Vec<u64>>, node: usize| {
            units.and_then(|units| units.get(node)).map_or(0.0, |units| *units as f64 / step.as_secs_f64())
        };
        let of = |node: usize| (0..count).map(|at| per_second(timeline.steps().get(at), node)).collect();
        let nodes: Vec<Vec<f64>> = (0..scenario.nodes).map(of).collect();
        let fleet: Vec<f64> = (0..count).map(|at| nodes.iter().map(|node| node[at]).sum()).collect();
        let limit = scenario.limits.first().map_or(0.0, |limit| limit.quota().units_per_second());
        let highest = fleet.iter().copied().fold(limit, f64::max);
        Self { scenario, seed, step, nodes, fleet, limit, top: highest * 1.25, marks: marks(scenario) }
    }

    fn draw(&self, text: &mut String) -> Result<(), Failed> {
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, rest) = root.split_vertically(64);
        self.draw_head(&head)?;
        let (body, legend) = rest.split_horizontally(SIZE.0 as i32 - 190);
        let mut plot = ChartBuilder::on(&body)
            .margin_left(14)
            .margin_right(12)
            .margin_bottom(8)
            .x_label_area_size(44)
            .y_label_area_size(78)
            .build_cartesian_2d(0.0..self.scenario.length.as_secs_f64(), 0.0..self.top)?;
        plot.configure_mesh()
            .disable_x_mesh()
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .x_labels(14)
            .y_labels(8)
            .x_desc("seconds since the fleet's start")
            .y_desc("units admitted per second")
            .x_label_formatter(&|x| plain(*x))
            .y_label_formatter(&|y| plain(*y))
            .label_style(("sans-serif", 15).into_font().color(&INK))
            .axis_desc_style(("sans-serif", 16).into_font().color(&INK))
            .draw()?;
        if self.is_stacked() {
            self.draw_stack(&mut plot)?
        } else {
            self.draw_lines(&mut plot)?
        }
        self.draw_fleet(&mut plot)?;
        self.draw_marks(&mut plot)?;
        self.draw_legend(&legend)?;
        root.present()?;
        Ok(())
    }

    fn is_stacked(&self) -> bool {
        self.nodes.len() > MAX_LINES
    }

    fn draw_head(&self, head: &Area<'_>) -> Result<(), Failed> {
        let Scenario { name, about, nodes, .. } = self.scenario;
        let title = format!("{name}: what {nodes} nodes admitted");
        head.draw_text(&title, &("sans-serif", 24).into_text_style(head).color(&INK), (92, 10))?;
        let about = format!("{about} (seed {})", self.seed);
        head.draw_text(
            &about,
            &("sans-serif", 15).into_text_style(head).color(&RGBColor(0x55, 0x55, 0x55)),
            (92, 41),
        )?;
        Ok(())
    }

    fn at(&self, step: usize) -> f64 {
        // In the middle of what it counts.
        (step as f64 + 0.5) * self.step.as_secs_f64()
    }

    fn draw_lines(&self, plot: &mut Plot<'_>) -> Result<(), Failed> {
        for (node, admitted) in self.nodes.iter().enumerate() {
            let points = admitted.iter().enumerate().map(|(step, y)| (self.at(step), *y));
            plot.draw_series(LineSeries::new(points, self.colour(node).stroke_width(2)))?;
        }
        Ok(())
    }

    fn draw_stack(&self, plot: &mut Plot<'_>) -> Result<(), Failed> {
        let mut below = vec![0.0; self.fleet.len()];
        for (node, admitted) in self.nodes.iter().enumerate() {
            let above: Vec<f64> = below.iter().zip(admitted).map(|(below, own)| below + own).collect();
            let up = above.iter().enumerate().map(|(step, y)| (self.at(step), *y));
            let back = below.iter().enumerate().rev().map(|(step, y)| (self.at(step), *y));
            let outline: Vec<(f64, f64)> = up.chain(back).collect();
            plot.draw_series([Polygon::new(outline, self.colour(node).filled())])?;
            below = above;
        }
        Ok(())
    }

    fn draw_fleet(&self, plot: &mut Plot<'_>) -> Result<(), Failed> {
        let points = self.fleet.iter().enumerate().map(|(step, y)| (self.at(step), *y));
        plot.draw_series(LineSeries::new(points, INK.stroke_width(3)))?;
        let end = self.scenario.length.as_secs_f64();
        plot.draw_series(DashedLineSeries::new(
            [(0.0, self.limit), (end, self.limit)],
            10,
            5,
            LIMIT.stroke_width(2),
        ))?;
        Ok(())
    }

    /// Faults as vertical lines. Labels stand in rows, in the first one with room; those that find none are left out, as
    /// are all of them where they would hide the picture, and the legend tells their colours.
    fn draw_marks(&self, plot: &mut Plot<'_>) -> Result<(), Failed> {
        const ROWS: usize = 4;
        const MOST_LABELS: usize = 24;
        let length = self.scenario.length.as_secs_f64();
        let width = |label: &str| (label.len() as f64 * 7.6 + 12.0) / 1_000.0 * length;
        let mut ends = [f64::NEG_INFINITY; ROWS];
        for mark in &self.marks {
            let line = [(mark.at, 0.0), (mark.at, self.top)];
            plot.draw_series(DashedLineSeries::new(line, 4, 4, mark.colour.stroke_width(1)))?;
            if self.marks.len() > MOST_LABELS {
                continue;
            }
            let room = width(&mark.label);
            let x = mark.at.min(length - room);
            let Some(row) = ends.iter().position(|end| *end <= x) else { continue };
            ends[row] = x + room;
            let y = self.top * (0.985 - 0.04 * row as f64);
            let style = ("sans-serif", 14).into_font().color(&mark.colour);
            let at = x + 4.0 / 1_000.0 * length;
            plot.draw_series([Text::new(mark.label.clone(), (at, y), style)])?;
        }
        Ok(())
    }

    fn draw_legend(&self, legend: &Area<'_>) -> Result<(), Failed> {
        let mut entries = vec![
            ("the fleet".to_owned(), INK, 3, false),
            (format!("the limit, {}/s", plain(self.limit)), LIMIT, 2, true),
        ];
        if self.is_stacked() {
            let last = self.nodes.len() - 1;
            let some = [0, last / 4, last / 2, last * 3 / 4, last];
            entries.extend(some.iter().map(|node| (format!("node {node}"), self.colour(*node), 12, false)));
        } else {
            entries.extend(
                (0..self.nodes.len()).map(|node| (format!("node {node}"), self.colour(node), 2, false)),
            );
        }
        let mut kinds: Vec<(&str, RGBColor)> = Vec::new();
        for mark in &self.marks {
            let kind = mark.label.split(' ').next().unwrap_or_default();
            if kinds.iter().all(|(known, _)| *known != kind) {
                kinds.push((kind, mark.colour));
            }
        }
        entries.extend(kinds.into_iter().map(|(kind, colour)| (kind.to_owned(), colour, 1, true)));
        for (row, (label, colour, width, dashed)) in entries.into_iter().enumerate() {
            let y = 20 + 24 * row as i32;
            let ends = if dashed { vec![(4, 12), (14, 22), (24, 32)] } else { vec![(4, 32)] };
            for (from, to) in ends {
                legend.draw(&PathElement::new(vec![(from, y), (to, y)], colour.stroke_width(width)))?;
            }
            legend.draw_text(&label, &("sans-serif", 15).into_text_style(legend).color(&INK), (40, y - 8))?;
        }
        if self.is_stacked() {
            let note = "nodes are stacked, 0 lowest";
            let y = SIZE.1 as i32 - 64 - 70;
            legend.draw_text(note, &("sans-serif", 13).into_text_style(legend).color(&INK), (4, y))?;
        }
        Ok(())
    }

    fn colour(&self, node: usize) -> RGBColor {
        if !self.is_stacked() {
            return NODES[node % NODES.len()];
        }
        // Neighbours differ in brightness, and all in hue.
        let part = node as f64 / self.nodes.len() as f64;
        let light = if node.is_multiple_of(2) { 0.62 } else { 0.76 };
        let (red, green, blue) = HSLColor((0.52 + 0.8 * part).fract(), 0.55, light).rgb();
        RGBColor(red, green, blue)
    }
}

/// The faults of a scenario; of many at one moment, the first stands for all.
fn marks(scenario: &Scenario) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::new();
    for (at, action) in &scenario.steps {
        let Some((label, colour)) = label(action) else { continue };
        let at = at.as_secs_f64();
        match marks.last_mut() {
            Some(last) if last.at == at && last.colour == colour && !last.label.ends_with(" …") => {
                last.label.push_str(" …")
            }
            Some(last) if last.at == at && last.colour == colour => {}
            _ => marks.push(Mark { at, label, colour }),
        }
    }
    marks
}

fn label(action: &Action) -> Option<(String, RGBColor)> {
    let label = match action {
        Action::Partition(one, other) => {
            (format!("partition {} | {}", group(one), group(other)), RGBColor(0x9c, 0x27, 0xb0))
        }
        Action::Cut(from, to) => (format!("cut {from} → {to}"), RGBColor(0x9c, 0x27, 0xb0)),
        Action::Heal => ("heal".to_owned(), RGBColor(0x1b, 0x7f, 0x3b)),
        Action::Crash(node) => (format!("crash {node}"), RGBColor(0xb7, 0x1c, 0x1c)),
        Action::Leave(node) => (format!("leave {node}"), RGBColor(0xb2, 0x5e, 0x00)),
        Action::Restart(node) => (format!("restart {node}"), RGBColor(0x0b, 0x5c, 0xad)),
        Action::Stall(node, length) => {
            (format!("stall {node} {}ms", length.as_millis()), RGBColor(0x5d, 0x40, 0x37))
        }
        Action::Skew(node, millis) => {
            (format!("skew {node} {}s", *millis as f64 / 1e3), RGBColor(0x45, 0x5a, 0x64))
        }
        Action::Offer(..) | Action::OfferMany(..) | Action::Burst(..) | Action::Measure => return None,
    };
    Some(label)
}

/// `0–2` for nodes in a row, `1,4` for some.
fn group(nodes: &[usize]) -> String {
    let in_a_row = nodes.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    match nodes {
        [first, .., last] if in_a_row => format!("{first}–{last}"),
        _ => nodes.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    }
}

/// A number without needless digits.
fn plain(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
