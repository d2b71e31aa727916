#include "src/data/chat/splice.hpp"

#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "src/models/gpt/chat_data.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;
using Marks = std::vector<std::uint8_t>;
using Samples = std::vector<std::int64_t>;

constexpr std::int32_t kPlaceholder = 100;
const SpeechFrames kWhole{.hop = 1, .stages = 0};  // one sample per frame

// Clips of 4, 2, 1 and 3 frames; the second row has no leading padding.
TEST(Splice, GivesTheKnownIndex) {
  const std::vector<Ids> ids{{1, 5, 100, 6, 7, 2}, {1, 100, 8, 2}, {1, 100, 9, 100, 10, 2}};
  const std::vector<Samples> clips{{4}, {2}, {1, 3}};
  std::vector<Marks> marks;
  std::vector<SpliceRow> rows;
  for (const Ids& row : ids) {
    marks.emplace_back(row.size(), std::uint8_t{0});
    marks.back()[row.size() - 1] = marks.back()[row.size() - 2] = 1;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) rows.push_back({ids[i], marks[i], clips[i]});
  const Splice made =
      make_splice(rows, {.frames = kWhole, .placeholder = kPlaceholder, .padded_rows = 4});
  EXPECT_EQ(made.rows, 3);
  EXPECT_EQ(made.tokens, 8);
  EXPECT_EQ(made.lengths, (Ids{8, 4, 7}));
  EXPECT_EQ(made.counted, 6);
  EXPECT_EQ(made.splice, (Ids{1, 5, -1, -2, -3, -4, 6, 7,   1,   -5,  -6, 8,
                              0, 0, 0,  0,  1,  -9, 9, -13, -14, -15, 10, 0}));
  EXPECT_EQ(made.targets, (Ids{-1, -1, -1, -1, -1, -1, 7,  2,  -1, -1, 8, 2,
                               -1, -1, -1, -1, -1, -1, -1, -1, -1, 10, 2, -1}));
}

TEST(Splice, LengthsAreOfIntegers) {
  // 5 + 4 + 3 + 6 ids and clips of 0.56, 2 and 1 seconds give 60; computed in floats it would be
  // 61.
  const SpeechFrames frames{.hop = 160, .stages = 3};
  Ids ids(18 + 3, 5);
  ids[5] = ids[9] = ids[12] = kPlaceholder;
  const Marks marks(ids.size(), 0);
  const Samples clips{8960, 32000, 16000};
  EXPECT_EQ(splice_rows({ids, marks, clips}, frames), 18 + 7 + 25 + 13 - 1);
}

TEST(Splice, RefusesWhatDoesNotFit) {
  const Ids ids{1, kPlaceholder, 2};
  const Marks marks{0, 0, 1};
  const SpliceOptions options{.frames = kWhole, .placeholder = kPlaceholder, .padded_rows = 4};
  const auto spliced = [&](const Samples& clips, std::int64_t row_tokens) {
    SpliceOptions asked = options;
    asked.row_tokens = row_tokens;
    const std::vector<SpliceRow> rows{{ids, marks, clips}};
    return make_splice(rows, asked).tokens;
  };
  EXPECT_EQ(spliced({3}, 9), 9);
  EXPECT_THROW(spliced({3, 1}, 9), DataError);
  EXPECT_THROW(spliced({}, 9), DataError);
  EXPECT_THROW(spliced({0}, 9), DataError);
  EXPECT_THROW(spliced({4}, 4), DataError);
}

TEST(Packing, FillsRowsInOrder) {
  const Samples lengths{3, 5, 4, 2, 1, 8};
  const auto rows = pack_rows(lengths, 8);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].documents, (Samples{0, 1}));
  EXPECT_EQ(rows[0].begins, (Ids{0, 3, 8}));
  EXPECT_EQ(rows[1].documents, (Samples{2, 3, 4}));
  EXPECT_EQ(rows[2].documents, (Samples{5}));
  EXPECT_THROW(pack_rows(Samples{9}, 8), DataError);
}

// The documents of the known packed losses: 3 and 5 targets, none across the boundary.
TEST(Packing, CountsNoTargetAcrossDocuments) {
  const Ids a{3, 17, 5, 0}, b{23, 11, 8, 8, 2, 19};
  const Marks all_a(a.size(), 1), all_b(b.size(), 1);
  const std::vector<std::span<const std::int32_t>> ids{a, b};
  const std::vector<std::span<const std::uint8_t>> counted{all_a, all_b};
  const PackedTokens packed = packed_tokens(ids, counted, 9);
  EXPECT_EQ(packed.inputs, (Ids{3, 17, 5, 23, 11, 8, 8, 2, 0}));
  EXPECT_EQ(packed.targets, (Ids{17, 5, 0, 11, 8, 8, 2, 19, -1}));
  EXPECT_EQ(packed.positions, (Ids{0, 1, 2, 0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(packed.begins, (Ids{0, 3, 8}));
}

}  // namespace
}  // namespace choir
