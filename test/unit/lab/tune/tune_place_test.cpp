#include "src/lab/tune/tune.hpp"

#include <gtest/gtest.h>

namespace choir {
namespace {

TEST(TunePlace, MemoryInWords) {
  EXPECT_EQ(memory_of_word("6"), 6442450944.0);
  EXPECT_EQ(memory_of_word("6GiB"), 6442450944.0);
  EXPECT_EQ(memory_of_word("1.5 KiB"), 1536);
  EXPECT_EQ(memory_of_word("512MiB"), 536870912.0);
  EXPECT_EQ(memory_of_word("6442450944B"), 6442450944.0);
  EXPECT_EQ(memory_of_word("0.5TiB"), 549755813888.0);
  for (const char* word : {"", "much", "6GB", "-1", "0", "inf", "nan", "6 GiB more"})
    EXPECT_THROW(memory_of_word(word), DeckError) << word;
}

}  // namespace
}  // namespace choir
