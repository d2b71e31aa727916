#include "src/data/text/token_samples.hpp"

#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

std::vector<std::int32_t> values(const TensorView& view) {
  return {view.as<std::int32_t>(), view.as<std::int32_t>() + view.count()};
}

TEST(Batch, TargetsAreInputsOneLaterAndPaddingIsMasked) {
  BatchBuffer buffer(3, 4);
  std::fill_n(buffer.batch.inputs.as<std::int32_t>(), 12, 99);  // old contents must not remain
  std::fill_n(buffer.batch.targets.as<std::int32_t>(), 12, 99);
  const std::vector<std::uint16_t> narrow{1, 2, 3, 4, 5, 7, 8, 9};
  const std::vector<std::int32_t> wide{1, 2, 3, 4, 5, 7, 8, 9};
  const TokenWindow windows[] = {{0, 4}, {6, 2}, {}};
  for (const int token_bytes : {2, 4}) {
    const void* from = token_bytes == 2 ? static_cast<const void*>(narrow.data()) : wide.data();
    fill_batch(from, token_bytes, windows, 10, {}, buffer.batch);
    EXPECT_EQ(values(buffer.batch.inputs),
              (std::vector<std::int32_t>{1, 2, 3, 4, 7, 8, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(values(buffer.batch.targets),
              (std::vector<std::int32_t>{2, 3, 4, 5, 8, 9, -1, -1, -1, -1, -1, -1}));
    EXPECT_EQ(buffer.batch.valid, 6);
  }
}

TEST(Batch, IdsOutsideTheVocabularyAreNamed) {
  const test::ScratchFolder folder;
  const std::vector<std::int32_t> first{0, 1, 2}, second{3, 9, 1};
  test::write_native(folder / "a.tok", first, 10);
  test::write_native(folder / "b.tok", second, 10);
  const auto stream =
      TokenStream::open({folder / "a.tok", folder / "b.tok"}, TokenFormat::automatic, Split::train);
  BatchBuffer buffer(1, 3);
  const std::vector<std::uint16_t> tokens{1, 2, 3, 9};
  const TokenWindow window{1, 3};
  EXPECT_DATA_ERROR(fill_batch(tokens.data(), 2, {&window, 1}, 9, stream, buffer.batch),
                    "b.tok', token 1 is outside the vocabulary of 9");
  const std::vector<std::int32_t> negative{1, -5, 3, 1};
  EXPECT_DATA_ERROR(fill_batch(negative.data(), 4, {&window, 1}, 9, stream, buffer.batch),
                    "token -5 at file");
}

TEST(Synthetic, KnownAnswers) {  // an independent program computed Philox
  BatchBuffer buffer(2, 8);
  buffer.batch.first_sample = 10;
  fill_synthetic(5, "data.synthetic", 50257, buffer.batch);
  const std::vector<std::int32_t> row{21197, 18364, 30447, 2447, 2153, 33810, 36801, 2803, 35727};
  const auto inputs = values(buffer.batch.inputs), targets = values(buffer.batch.targets);
  EXPECT_TRUE(std::equal(row.begin(), row.end() - 1, inputs.begin() + 8));
  EXPECT_TRUE(std::equal(row.begin() + 1, row.end(), targets.begin() + 8));
  EXPECT_EQ(buffer.batch.valid, 16);
}

}  // namespace
}  // namespace choir
