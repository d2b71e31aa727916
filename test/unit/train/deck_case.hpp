#pragma once
// A small deck with overrides, and the message about it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "test/support/families.hpp"

namespace choir::test {

inline Deck small_deck(const std::vector<std::string>& overrides = {}) {
  return parse_deck(test::families(),
                    "{\"data\": {\"train\": \"a.txt\"},\n \"train\": {\"micro_batch_size\": 2, "
                    "\"global_batch_size\": 8}}",
                    "decks/small.json", overrides);
}

/// The message; "" if the deck is accepted.
inline std::string complaint(const std::vector<std::string>& overrides) {
  try {
    small_deck(overrides);
  } catch (const DeckError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return {};
}

}  // namespace choir::test
