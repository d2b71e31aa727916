// Tests that training on the fly gives the same tokens for any number of ranks, threads and any
// place where it begins; the expected tokens are those of the units, encoded one after another.
#include "src/data/text/streamed_source.hpp"

#include "choir/comm/mesh/mesh.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;

class StreamedSourceTest : public testing::Test {
 protected:
  static constexpr std::int64_t kBlock = 16, kRows = 3, kPerStep = 12;
  static constexpr std::uint64_t kSeed = 99;

  StreamedSourceTest()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    comm().broadcast(&id, sizeof id, 0);
    if (comm().rank() == 0) folder_ = std::make_unique<ScratchFolder>(id, true);
    comm().barrier();
    if (comm().rank() != 0) folder_ = std::make_unique<ScratchFolder>(id, false);
    if (comm().rank() == 0) write_texts();
    comm().barrier();
  }
  ~StreamedSourceTest() override { comm().barrier(); }

  Communicator& comm() { return mesh_->along(Axis::data); }

  void write_texts() {
    std::string lines, plain;
    for (int i = 0; i < 150; ++i) {
      const std::string text(static_cast<std::size_t>(i * i % 31), static_cast<char>('a' + i % 26));
      lines +=
          i % 40 == 7 ? "{\"text\": 1}\n" : "{\"text\": \"" + std::to_string(i) + text + "\"}\n";
      plain += std::to_string(i * i) + (i % 5 == 0 ? "\n" : " ");
    }
    test::write_bytes(*folder_ / "texts/a.jsonl", lines);
    test::write_bytes(*folder_ / "texts/b.txt", plain);
    test::write_bytes(*folder_ / "texts/empty.jsonl", "\n\n");
  }

  std::shared_ptr<const StreamedText> open_texts(int threads, const std::string& file = "") {
    TextSource source =
        TextSource::open({*folder_ / "texts"}, {.plain_span = 300, .line_span = 500});
    const Vocabulary bytes = Vocabulary::bytes();
    TextIndex index = index_texts(comm(), source, bytes, {.file = file, .threads = threads});
    return std::make_shared<const StreamedText>(
        StreamedText{std::move(source), bytes, std::move(index)});
  }

  /// The tokens of an epoch, one unit after another.
  static std::vector<std::int32_t> epoch(const StreamedText& text, std::int64_t number) {
    const UnitOrder order(tokens_of_units(text.index), kBlock, kSeed);
    std::vector<std::int32_t> all;
    for (std::int64_t i = 0; i < order.units(); ++i) {
      const auto made =
          encode_unit(text.source, order.unit_at(number * order.units() + i), text.vocabulary);
      all.insert(all.end(), made.ids.begin(), made.ids.end());
    }
    return all;
  }

  MicroBatchOrder order_from(std::int64_t first_sample) {
    const std::int64_t mine = kPerStep / comm().size();
    return {first_sample, kPerStep, mine * comm().rank(), mine};
  }

  /// Compares `steps` steps from `first_sample` on.
  bool fills_right(const std::shared_ptr<const StreamedText>& text, std::int64_t first_sample,
                   std::int64_t steps, int threads, std::int64_t* encoded = nullptr) {
    const std::int64_t windows = (text->index.tokens() - 1) / kBlock;
    StreamedSource source(comm(), "test", text, {kRows, kBlock, 256}, kSeed,
                          order_from(first_sample), threads);
    BatchBuffer buffer(kRows, kBlock);
    std::map<std::int64_t, std::vector<std::int32_t>> epochs;
    bool ok = true;
    for (std::int64_t call = 0; call < steps * kPerStep / comm().size(); ++call) {
      source.fill(call, buffer.batch);
      ok = ok && buffer.batch.valid == kRows * kBlock;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const std::int64_t sample = buffer.batch.first_sample + row;
        auto& tokens = epochs[sample / windows];
        if (tokens.empty()) tokens = epoch(*text, sample / windows);
        const auto* from = tokens.data() + sample % windows * kBlock;
        const auto* inputs = buffer.batch.inputs.as<std::int32_t>() + row * kBlock;
        const auto* targets = buffer.batch.targets.as<std::int32_t>() + row * kBlock;
        ok = ok && std::equal(inputs, inputs + kBlock, from) &&
             std::equal(targets, targets + kBlock, from + 1);
      }
    }
    if (encoded != nullptr) *encoded = source.units_encoded();
    return ok;
  }

  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> folder_;
};

TEST_F(StreamedSourceTest, SameTokensForAnyRanksThreadsAndBegin) {
  const auto text = open_texts(2);
  const std::int64_t windows = (text->index.tokens() - 1) / kBlock;
  EXPECT_GT(text->index.units.size(), 10u);
  EXPECT_EQ(text->index.damaged.count(), 4);
  for (const int threads : {1, 3})
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{36}, windows - 5, 3 * windows})
      EXPECT_ALL_RANKS(fills_right(text, first, 4, threads)) << threads << " " << first;
}

/// A run that continues encodes from the unit on in which it stopped.
TEST_F(StreamedSourceTest, ContinuingEncodesAtMostOneUnitAgain) {
  const auto text = open_texts(1);
  UnitOrder order(tokens_of_units(text->index), kBlock, kSeed);
  const std::int64_t first = 2 * order.windows_per_epoch() + 40;
  std::int64_t encoded = 0;
  EXPECT_ALL_RANKS(fills_right(text, first, 1, 1, &encoded));
  comm().all_reduce(&encoded, 1, DType::i64, ReduceOp::sum);
  const auto segments = order.segments(first, kPerStep * kRows);
  const std::int64_t needed =
      segments.back().pieces.back().place - segments.front().pieces.front().place + 1;
  // Each rank may have begun two more, for which its thread does not wait.
  EXPECT_LE(encoded, needed + 2 * comm().size());
}

TEST_F(StreamedSourceTest, TheIndexIsThatOfOneRank) {
  const auto text = open_texts(3);
  std::int64_t documents = 0;
  for (std::size_t unit = 0; unit < text->source.units().size(); ++unit) {
    const UnitIds made = encode_unit(text->source, unit, text->vocabulary);
    documents += made.documents;
    EXPECT_EQ(text->index.units[unit].tokens, std::ssize(made.ids)) << unit;
  }
  EXPECT_EQ(text->index.documents, documents);
  EXPECT_EQ(documents, 146);
  EXPECT_NE(text->index.damaged.to_string().find("a.jsonl', line 8)"), std::string::npos)
      << text->index.damaged.to_string();
  // A kept index is the same.
  const std::string file = *folder_ / "kept/a.index";
  const std::string made = open_texts(1, file)->index.serialise();
  EXPECT_ALL_RANKS(std::filesystem::exists(file));
  EXPECT_ALL_RANKS(open_texts(1, file)->index.serialise() == made);
  EXPECT_ALL_RANKS(text->index.serialise() == made);
}

TEST_F(StreamedSourceTest, AChangedTextIsRefusedByAll) {
  const auto text = open_texts(1);
  comm().barrier();
  if (comm().rank() == 0) {
    std::string lines = test::read_bytes(*folder_ / "texts/a.jsonl");
    for (char& c : lines) c = c == 'b' ? 'c' : c;
    test::write_bytes(*folder_ / "texts/a.jsonl", lines);
  }
  comm().barrier();
  std::string what;
  try {
    fills_right(text, 0, 8, 1);
  } catch (const DataError& error) {
    what = error.what();
  }
  EXPECT_ALL_RANKS(what.find("changed after it was indexed") != std::string::npos) << what;
}

}  // namespace
}  // namespace choir
