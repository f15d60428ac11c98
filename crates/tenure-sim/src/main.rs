//! `cargo sim`: new seeds until stopped, or one seed again, line by line.

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args[1] == "--seeds" {
        let from: u64 = args[2].parse().unwrap();
        let to: u64 = args[3].parse().unwrap();
        let mut total = tenure_sim::Counts::default();
        for seed in from..to {
            let report = std::panic::catch_unwind(|| tenure_sim::run(seed, Default::default()));
            match report {
                Ok(report) => {
                    total.add(&report.counts);
                    if let Some(v) = report.violation { println!("{seed}: {v}"); }
                }
                Err(_) => println!("{seed}: panic"),
            }
        }
        println!("{total:?} {} h", total.hours());
        return;
    }
    let seed = args[1].parse().unwrap();
    let options = tenure_sim::Options { printing: tenure_sim::Printing::On, ..Default::default() };
    let report = tenure_sim::run(seed, options);
    println!("{report:#?}");
}
