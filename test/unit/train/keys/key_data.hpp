#pragma once
// Data of every family in a folder, a few seconds of each.
#include <string>

namespace choir::test {

/// Writes what begins with `kind` under `folder`: text (a text, two copies of it, and another),
/// speech (packed), chat (conversations with clips), talk (dialogues with codes), each with more
/// that is held out; damagedspeech and damagedtalk, in which one of 104 recordings is damaged.
void write_data(const std::string& folder, const std::string& kind);

}  // namespace choir::test
