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

const TICKS: [(Duration, u8); 2] = [(secs(1), 2), (secs(18), 4)];

fn run(scene: Scene) {
    let scene: &'static Scene = Box::leak(Box::new(scene));
    let started = Instant::now();
    let explored = explore(World::new(scene));
    println!(
        "{}: {} states, {} transitions, {} ends, {:?}",
        scene.name, explored.states, explored.transitions, explored.ends, started.elapsed()
    );
    if let Some((way, fault)) = explored.fault {
        panic!("{}: {fault}\n{}", scene.name, way.join("\n"));
    }
}


#[test]
fn env() {
    let get = |name: &str, default: &str| std::env::var(name).unwrap_or(default.into());
    let players: Vec<Player> = get("PLAYERS", "EE").chars().map(|c| match c {
        'E' => Player::Tenure(Exclusive),
        'S' => Player::Tenure(Shared),
        'e' => Player::Original(Exclusive),
        's' => Player::Original(Shared),
        _ => panic!(),
    }).collect();
    let ticks: Vec<(Duration, u8)> = get("TICKS", "1000x2,18000x4").split(',').map(|t| {
        let (a, b) = t.split_once('x').unwrap();
        (Duration::from_millis(a.parse().unwrap()), b.parse().unwrap())
    }).collect();
    run(Scene {
        name: "env",
        level: match get("LEVEL", "2").as_str() { "2" => Level::Deletes, "1" => Level::Writes, _ => Level::Nothing },
        clock: if get("CLOCK", "1") == "1" { StoreClock::Shown } else { StoreClock::Hidden },
        players: players.leak(),
        late: if get("LATE", "prompt") == "prompt" { Late::Prompt } else { Late::Any },
        ticks: ticks.leak(),
        losses: get("LOSSES", "0").parse().unwrap(),
        deaths: get("DEATHS", "0").parse().unwrap(),
    });
}
