// Tests of the numbers of elements: those of one rank are consecutive, and every other layout has
// the same numbers for its parts.
#include "src/models/gpt/gpt.hpp"
#include "src/optim/adamw.hpp"

#include <gtest/gtest.h>

#include <map>

#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

GptConfig one_head_for_all() {
  GptConfig c = test::tiny_llama();
  c.n_kv_head = 1;
  c.tied = true;
  return c;
}

/// The number of every local element of a bucket that is in a span.
std::map<std::int64_t, std::int64_t> numbers_of(const std::vector<ElementSpan>& spans) {
  std::map<std::int64_t, std::int64_t> numbers;
  for (const ElementSpan& span : spans)
    for (std::int64_t i = 0; i < span.local.count; ++i) {
      const bool fresh = numbers.emplace(span.local.first + i, span.elements.at(i)).second;
      EXPECT_TRUE(fresh) << "element " << span.local.first + i << " twice";
    }
  return numbers;
}

TEST(ElementSpans, OneRankHasOneABucket) {
  ParameterSet set;
  const Gpt model(test::tiny_gpt(), set);
  set.place(3);
  for (const Bucket& bucket : set.buckets()) {
    const std::vector<ElementSpan> spans = element_spans(bucket);
    ASSERT_EQ(spans.size(), 1u) << bucket.name;
    EXPECT_EQ(spans[0].local.first, 0);
    EXPECT_EQ(spans[0].elements.width, 0);
    EXPECT_EQ(spans[0].elements.first, bucket.parameters[0]->position);
  }
}

TEST(ElementSpans, PartsHaveTheNumbersOfTheirLogicalElements) {
  for (const GptConfig& config : {test::tiny_gpt(), test::tiny_llama(), one_head_for_all()})
    for (const int ranks : {2, 4}) {
      std::map<std::int64_t, int> owners;  // owners of each number
      std::int64_t elements = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        ParameterSet set({.rank = rank, .ranks = ranks});
        const Gpt model(config, set);
        set.place(2);
        elements = set.count();
        for (const Bucket& bucket : set.buckets()) {
          const std::vector<ElementSpan> spans = element_spans(bucket);
          // Rows of equal width; sections of different width (q beside k and v) are separate.
          EXPECT_LE(spans.size(), 2 * bucket.parameters.size()) << bucket.name;
          const auto numbers = numbers_of(spans);
          for (const Parameter* p : bucket.parameters)
            for (const ShardRun& run : shard_runs(*p))
              for (std::int64_t i = 0; i < run.count; ++i) {
                const std::int64_t number = p->position + run.logical + i;
                ASSERT_EQ(numbers.at(p->offset + run.local + i), number) << p->name;
                owners[number] += run.owned;
              }
        }
      }
      EXPECT_EQ(static_cast<std::int64_t>(owners.size()), elements);
      for (const auto& [number, times] : owners) ASSERT_EQ(times, 1) << number;
    }
}

}  // namespace
}  // namespace choir
