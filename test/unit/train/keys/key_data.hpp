#pragma once
// Data for every family in one folder, a few seconds each.
#include <string>

namespace choir::test {

/// Writes the data whose names begin with `kind` into `folder`: text (a text, two copies of it, and
/// another), speech (packed), chat (conversations with clips), talk (dialogues with codes), each
/// with held-out data; and damagedspeech and damagedtalk, in which one of 104 recordings is
/// damaged.
void write_data(const std::string& folder, const std::string& kind);

}  // namespace choir::test
