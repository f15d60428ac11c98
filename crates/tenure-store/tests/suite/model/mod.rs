//! draft

mod explore;
mod part;
mod store;
mod tenure;
mod world;

use std::time::Duration;
use std::time::Instant;

use tenure_store::terms::Level;

use crate::support::Mode::{Exclusive, Shared};
use explore::explore;
use store::StoreClock;
use world::{Late, Player, Scene, World};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn run(scene: Scene) {
    let scene: &'static Scene = Box::leak(Box::new(scene));
    let started = Instant::now();
    let explored = explore(World::new(scene));
    println!(
        "{}: {} states, {} transitions, {} ends, {:?}",
        scene.name,
        explored.states,
        explored.transitions,
        explored.ends,
        started.elapsed()
    );
    if let Some((way, fault)) = explored.fault {
        panic!("{}: {fault}\n{}", scene.name, way.join("\n"));
    }
}

#[test]
fn env() {
    let get = |name: &str, default: &str| std::env::var(name).unwrap_or(default.into());
    let players: Vec<Player> = get("PLAYERS", "EE")
        .chars()
        .map(|c| match c {
            'E' => Player::Tenure(Exclusive),
            'S' => Player::Tenure(Shared),
            'e' => Player::Original(Exclusive),
            's' => Player::Original(Shared),
            _ => panic!(),
        })
        .collect();
    let ticks: Vec<Duration> = get("TICKS", "1000,18000,18000,18000,18000")
        .split(',')
        .map(|t| Duration::from_millis(t.parse().unwrap()))
        .collect();
    run(Scene {
        name: "env",
        level: match get("LEVEL", "2").as_str() {
            "2" => Level::Deletes,
            "1" => Level::Writes,
            _ => Level::Nothing,
        },
        clock: if get("CLOCK", "1") == "1" {
            StoreClock::Shown
        } else {
            StoreClock::Hidden
        },
        players: players.leak(),
        late: if get("LATE", "prompt") == "prompt" {
            Late::Prompt
        } else {
            Late::Any
        },
        ticks: ticks.leak(),
        losses: get("LOSSES", "0").parse().unwrap(),
        deaths: get("DEATHS", "0").parse().unwrap(),
    });
}
