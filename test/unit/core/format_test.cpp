#include <gtest/gtest.h>

#include <new>

#include "choir/core/error.hpp"
#include "choir/core/memory_plan.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0.0124), "12 ms");
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(245), "4m 05s");
  EXPECT_EQ(format_duration(7980), "2h 13m");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(64.0 * 1024 * 1024), "64.0 MiB");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024 * 1024), "1.5 GiB");
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(85003776), "85,003,776");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(-1000), "-1,000");
}

TEST(MemoryPlan, AddsUpByName) {
  MemoryPlan plan;
  plan.add("parameters", 1024);
  plan.add("parameters", 1024);
  plan.add("gradients", 3 << 20, true);
  EXPECT_EQ(plan.entries.size(), 2u);
  EXPECT_EQ(plan.bytes_of("parameters"), 2048u);
  EXPECT_EQ(plan.bytes_of("nothing"), 0u);
  EXPECT_EQ(plan.total(), 2048u + (3u << 20));
  const std::string text = plan.to_string();
  EXPECT_NE(text.find("3.000 MiB  shared"), std::string::npos) << text;
  EXPECT_NE(text.find("3.002 MiB"), std::string::npos) << text;
}

TEST(MemoryPlan, KeepsPlacesApart) {
  MemoryPlan plan;
  plan.add("moments", 1 << 20);
  plan.add("moments", 2 << 20, false, MemoryPlace::host);
  plan.add("moments", 4 << 20, false, MemoryPlace::file);
  EXPECT_EQ(plan.entries.size(), 3u);
  EXPECT_EQ(plan.total(), 1u << 20);
  EXPECT_EQ(plan.total(MemoryPlace::host), 2u << 20);
  EXPECT_EQ(plan.bytes_of("moments"), 7u << 20);
  const std::string text = plan.to_string();
  EXPECT_NE(text.find("2.000 MiB  host memory\n"), std::string::npos) << text;
  EXPECT_NE(text.find("4.000 MiB  file\n"), std::string::npos) << text;
  EXPECT_NE(text.find("file per rank                       4.000 MiB"), std::string::npos) << text;
}

TEST(Errors, CarryCodeHintAndPlace) {
  const StorageError error("no space", "free some");
  EXPECT_EQ(error.code(), ExitCode::storage);
  EXPECT_EQ(describe(error), "no space\n  -> free some");
  EXPECT_EQ(describe(std::runtime_error("plain")), "plain");
  EXPECT_EQ(describe(std::bad_alloc()).rfind("out of memory: ", 0), 0u);
  EXPECT_EQ(describe(DeckError("first\nsecond")), "first\nsecond");
  // Errors within the program, or between its ranks, print their position in the source.
  const std::string lines = describe(CommError("first\nsecond"));
  EXPECT_EQ(lines.rfind("first [format_test.cpp:", 0), 0u) << lines;
  EXPECT_LT(lines.find("[format_test.cpp"), lines.find("\nsecond")) << lines;
  try {
    CHOIR_CHECK(1 == 2, "{} apples", 3);
    FAIL();
  } catch (const Error& check) {
    EXPECT_EQ(check.code(), ExitCode::other);
    EXPECT_NE(std::string(check.what()).find("1 == 2: 3 apples"), std::string::npos);
  }
}

}  // namespace
}  // namespace choir
