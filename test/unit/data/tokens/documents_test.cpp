#include "src/data/text/documents.hpp"

#include <cstring>
#include <random>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/data/text/step_batches.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using Ids = std::vector<std::int32_t>;
using test::ScratchFolder;
using test::write_bytes;

Ids ids_in(const TensorView& view) {
  return {view.as<std::int32_t>(), view.as<std::int32_t>() + view.count()};
}

// The row, documents, positions and mask of schedules.json, "documents". Document 2 is an end
// alone.
const Ids kRow{5, 6, 0, 7, 8, 9, 0, 0, 4, 3, 2};

TEST(Documents, EndByATokenAsInTheKnownRow) {
  const ScratchFolder folder;
  write_bytes(folder / "a.bin",
              test::packed<std::uint16_t>(std::vector<std::uint16_t>(kRow.begin(), kRow.end())));
  const auto stream = TokenStream::open({folder / "a.bin"}, TokenFormat::automatic, Split::train);
  BatchBuffer buffer(1, 10, true);
  const TokenWindow window{0, 10};
  const std::vector<std::uint16_t> tokens(kRow.begin(), kRow.end());
  fill_batch(tokens.data(), 2, {&window, 1}, 10, stream, buffer.batch);
  DocumentEnds ends(stream, 0);
  std::vector<std::uint8_t> marks;
  ends.mark(window, buffer.batch.inputs.as<std::int32_t>(), marks);
  separate_documents(marks, 10, 0, buffer.batch);
  EXPECT_EQ(ids_in(buffer.batch.inputs), Ids(kRow.begin(), kRow.end() - 1));
  EXPECT_EQ(ids_in(buffer.batch.targets), (Ids{6, 0, -1, 8, 9, 0, -1, -1, 3, 2}));
  EXPECT_EQ(ids_in(buffer.batch.begins), (Ids{0, 0, 0, 3, 3, 3, 3, 7, 8, 8}));
  EXPECT_EQ(ids_in(buffer.batch.positions), (Ids{0, 1, 2, 0, 1, 2, 3, 0, 0, 1}));
  EXPECT_EQ(buffer.batch.valid, 7);
  // Lengths 3, 4, 1, 2: 9 + 16 + 1 + 4 pairs; with a window of 2 they are 2 (6 - 2), 2 (8 - 2),
  // 1, 4.
  EXPECT_EQ(count_documents(buffer.batch, 0), (DocumentCounts{7, 30, 30}));
  EXPECT_EQ(count_documents(buffer.batch, 2), (DocumentCounts{7, 30, 25}));
}

TEST(Documents, PaddingIsADocumentOfItsOwn) {
  BatchBuffer buffer(2, 5, true);
  Batch& batch = buffer.batch;
  const Ids inputs{4, 0, 7, 0, 0, 0, 0, 0, 0, 0}, targets{0, 7, 8, -1, -1, -1, -1, -1, -1, -1};
  std::copy(inputs.begin(), inputs.end(), batch.inputs.as<std::int32_t>());
  std::copy(targets.begin(), targets.end(), batch.targets.as<std::int32_t>());
  batch.valid = 3;
  separate_documents({0, 1, 0}, 3, 0, batch);
  separate_documents({}, 0, 1, batch);
  EXPECT_EQ(ids_in(batch.targets), (Ids{0, -1, 8, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(ids_in(batch.begins), (Ids{0, 0, 2, 3, 3, 0, 0, 0, 0, 0}));
  EXPECT_EQ(ids_in(batch.positions), (Ids{0, 1, 0, 0, 1, 0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.valid, 2);
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A Megatron pair of sequences of these lengths; `firsts` as Megatron-LM writes them: the first
/// sequence of each document, and the number of sequences.
void write_pair(const std::string& prefix, const Ids& lengths,
                const std::vector<std::int64_t>& firsts) {
  std::string index("MMIDIDX\0\0", 9);
  append<std::uint64_t>(index, 1);
  index += static_cast<char>(8);
  append<std::uint64_t>(index, lengths.size());
  append<std::uint64_t>(index, firsts.size());
  std::int64_t total = 0;
  for (const std::int32_t length : lengths) append(index, length);
  for (const std::int32_t length : lengths) append(index, 2 * total), total += length;
  for (const std::int64_t first : firsts) append(index, first);
  write_bytes(prefix + ".idx", index);
  write_bytes(prefix + ".bin", test::packed<std::uint16_t>(
                                   std::vector<std::uint16_t>(static_cast<std::size_t>(total), 5)));
}

// Every window of two pairs, one behind the other, against ends that are counted by hand. Documents
// have 0 to 3 sequences of 0 to 4 tokens.
TEST(Documents, EndByTheIndexOfMegatron) {
  std::mt19937 random(5);
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  const ScratchFolder folder;
  std::vector<std::uint8_t> expected;
  for (const char* name : {"a", "b"}) {
    Ids lengths;
    std::vector<std::int64_t> firsts{0};
    for (int document = 0; document < 12; ++document) {
      for (int sequences = draw(4); sequences > 0; --sequences) {
        lengths.push_back(draw(5));
        expected.resize(expected.size() + static_cast<std::size_t>(lengths.back()));
      }
      firsts.push_back(std::ssize(lengths));
      if (!expected.empty()) expected.back() = 1;
    }
    write_pair(folder / name, lengths, firsts);
  }
  const auto stream =
      TokenStream::open({folder / "a", folder / "b"}, TokenFormat::automatic, Split::train);
  ASSERT_EQ(stream.count(), std::ssize(expected));
  ASSERT_GT(std::count(expected.begin(), expected.end(), 1), 10);
  require_document_ends(stream, -1);
  const auto passed_on = TokenStream::deserialise(stream.serialise());
  DocumentEnds ends(passed_on, -1), either(passed_on, 5);
  const Ids inputs(expected.size(), 5);
  std::vector<std::uint8_t> marks;
  for (std::int64_t first = 0; first < stream.count(); ++first)
    for (std::int64_t last = first; last <= stream.count(); ++last) {
      ends.mark({first, last - first}, inputs.data(), marks);
      ASSERT_EQ(marks, std::vector<std::uint8_t>(expected.begin() + first, expected.begin() + last))
          << first << " to " << last;
    }
  either.mark({1, 4}, inputs.data(), marks);
  EXPECT_EQ(marks, std::vector<std::uint8_t>(4, 1)) << "the token and the index both hold";
}

TEST(Documents, RefusesUnknownEndsAndADamagedIndex) {
  const ScratchFolder folder;
  write_bytes(folder / "raw.bin", std::string(20, '\1'));
  const auto open = [&](const std::string& name) {
    return TokenStream::open({folder / name}, TokenFormat::automatic, Split::train);
  };
  const auto raw = open("raw.bin");
  EXPECT_DATA_ERROR(require_document_ends(raw, -1), "unknown where a document ends in");
  require_document_ends(raw, 0);
  write_pair(folder / "x", {3, 2, 1}, {0, 2, 1, 3});
  EXPECT_DATA_ERROR(require_document_ends(open("x"), 0),
                    "document 2 begins with sequence 1, the one before it with 2, of 3");
  write_pair(folder / "x", {3, 2, 1}, {0, 2, 4});
  EXPECT_DATA_ERROR(require_document_ends(open("x"), 0), "document 2 begins with sequence 4");
}

/// Rows of 4 tokens, one document of each length from 1 on: batch c is all c, and ends after input
/// c mod 4.
class CountedSource : public BatchSource {
 public:
  void fill(std::int64_t call, Batch& batch) override {
    std::fill_n(batch.inputs.as<std::int32_t>(), 4, static_cast<std::int32_t>(call));
    std::fill_n(batch.targets.as<std::int32_t>(), 4, 1);
    batch.valid = 4;
    std::vector<std::uint8_t> ends(4, 0);
    ends[static_cast<std::size_t>(call % 4)] = 1;
    separate_documents(ends, 4, 0, batch);
  }
  std::int64_t rows() const override { return 1; }
  std::int64_t block_size() const override { return 4; }
  bool documents() const override { return true; }
  void abandon() override {}
};

// Contents of a step are known before its batches are taken and while the last batch of the
// previous step is in use, and again for steps that are still in flight.
TEST(StepBatches, KnowTheContentsOfAStepBeforeItsBatches) {
  const auto alone = make_mpi_communicator(MPI_COMM_SELF, "self");
  for (const bool threaded : {false, true})
    for (const std::int64_t ahead : {0, 1, 7}) {
      StepBatches steps(*alone, std::make_unique<CountedSource>(), 3, threaded, ahead, 2);
      const Batch* last = nullptr;
      for (std::int64_t step = 0; step < 100; ++step) {
        DocumentCounts counts;
        for (std::int64_t call = 3 * step; call < 3 * step + 3; ++call) {
          const std::int64_t a = call % 4 + 1, b = 4 - a;
          const auto hidden = [](std::int64_t l) { return l > 2 ? 2 * (2 * l - 2) : l * l; };
          counts.add({3, a * a + b * b, hidden(a) + hidden(b)});
        }
        ASSERT_EQ(steps.contents(step), counts) << step;
        if (last != nullptr) {
          ASSERT_EQ(ids_in(last->inputs), Ids(4, static_cast<std::int32_t>(3 * step - 1)));
        }
        for (std::int64_t call = 3 * step; call < 3 * step + 3; ++call) {
          last = &steps.next();
          ASSERT_EQ(ids_in(last->inputs), Ids(4, static_cast<std::int32_t>(call)));
        }
        ASSERT_EQ(steps.contents(step), counts);
        if (step > 0) {
          EXPECT_NE(steps.contents(step - 1), counts);
        }
      }
      EXPECT_ANY_THROW(steps.contents(102)) << "the step after the next";
    }
}

}  // namespace
}  // namespace choir
