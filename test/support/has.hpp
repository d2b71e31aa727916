#pragma once
// Checks that a text contains words, for EXPECT_TRUE and EXPECT_FALSE.
#include <gtest/gtest.h>

#include <string>

namespace choir::test {

inline testing::AssertionResult has(const std::string& text, const std::string& words) {
  const bool found = text.find(words) != std::string::npos;
  return (found ? testing::AssertionSuccess() : testing::AssertionFailure())
         << "'" << words << (found ? "' is in: " : "' is not in: ") << text;
}

}  // namespace choir::test
