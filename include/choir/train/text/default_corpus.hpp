#pragma once
// The text that the shipped decks train on where nobody has put one.
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"

namespace choir {

/// Collective over `world`: rank 0 looks and, if it must, writes. data/shakespeare/input.txt if it
/// is there, else data/kjv/input.txt, made once by the `bible` program of Debian's bible-kjv.
/// DataError when there is neither.
std::string default_corpus(Communicator& world, Logger& log);

}  // namespace choir
