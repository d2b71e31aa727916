#pragma once
// Assertions for tests of several ranks. A rank-local ASSERT before a collective leaves the other
// ranks waiting forever, so all ranks decide together instead.
#include <gtest/gtest.h>

#include <string>

namespace choir::test {

int world_rank();
int world_size();

/// Collective over the world: fails on every rank, naming the ranks on which `ok` is false.
::testing::AssertionResult on_all_ranks(bool ok);

}  // namespace choir::test

/// Collective; all ranks must reach it. A message can be streamed into it.
#define EXPECT_ALL_RANKS(condition) \
  EXPECT_TRUE(::choir::test::on_all_ranks(static_cast<bool>(condition))) << #condition
#define ASSERT_ALL_RANKS(condition) \
  ASSERT_TRUE(::choir::test::on_all_ranks(static_cast<bool>(condition))) << #condition
