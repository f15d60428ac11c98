//! Sets the linker options of a Node add-on.

fn main() {
    napi_build::setup();
}
