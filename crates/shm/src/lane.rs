//! lane
