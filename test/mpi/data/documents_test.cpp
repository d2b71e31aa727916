// Tests that rows with separate documents are the same for every reader and number of ranks, and
// that all ranks know the contents of a step. The expected rows come from memory.
#include "src/data/text/documents.hpp"

#include <random>

#include "choir/comm/mesh/mesh.hpp"
#include "src/data/text/dataset.hpp"
#include "src/data/text/token_samples.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;

constexpr std::int64_t kDocBlock = 16, kDocRows = 3, kDocTokens = 1500, kDocWindow = 4;
constexpr std::uint64_t kDocSeed = 99;
constexpr std::int32_t kDocEnd = 0;

class DocumentsTest : public testing::Test {
 protected:
  DocumentsTest()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    comm().broadcast(&id, sizeof id, 0);
    if (comm().rank() == 0) folder_ = std::make_unique<ScratchFolder>(id, true);
    comm().barrier();
    if (comm().rank() != 0) folder_ = std::make_unique<ScratchFolder>(id, false);
    std::mt19937 random(3);
    for (std::int64_t i = 0; i < kDocTokens; ++i) tokens_.push_back(random() % 7);
    const std::span<const std::uint16_t> all(tokens_);
    if (comm().rank() == 0) {
      test::write_bytes(*folder_ / "train_0.bin", test::packed(all.first(700)));
      test::write_bytes(*folder_ / "train_1.bin", test::packed(all.subspan(700, 600)));
      test::write_bytes(*folder_ / "val.bin", test::packed(all.subspan(1300)));
    }
    comm().barrier();
  }
  ~DocumentsTest() override { comm().barrier(); }

  Communicator& comm() { return mesh_->along(Axis::data); }

  DataConfig config() {
    DataConfig c;
    c.train = {folder_->path()};
    c.seed = kDocSeed;
    c.block_size = kDocBlock;
    c.rows = kDocRows;
    c.vocab_size = 7;
    c.documents = true;
    c.document_end = kDocEnd;
    c.window = kDocWindow;
    return c;
  }
  /// Compares a row, and adds its documents to `counts`.
  bool is_row(const Batch& batch, std::int64_t row, std::int64_t start, std::int64_t targets,
              DocumentCounts& counts) const {
    const auto at = [&](const TensorView& view, std::int64_t t) {
      return view.as<std::int32_t>()[row * kDocBlock + t];
    };
    bool ok = true;
    std::int64_t begin = 0;
    for (std::int64_t t = 0; t < kDocBlock; ++t) {
      const bool padding = t >= targets;
      const auto token = [&](std::int64_t i) {
        return static_cast<std::int32_t>(tokens_[static_cast<std::size_t>(start + i)]);
      };
      if (t == targets) begin = t;
      const bool ends = !padding && token(t) == kDocEnd;
      ok = ok && at(batch.inputs, t) == (padding ? 0 : token(t)) && at(batch.begins, t) == begin &&
           at(batch.positions, t) == t - begin &&
           at(batch.targets, t) == (padding || ends ? kIgnoredTarget : token(t + 1));
      counts.targets += !padding && !ends;
      if (!ends && t + 1 < kDocBlock) continue;
      const std::int64_t length = t + 1 - begin;
      counts.pairs += length * length;
      counts.window_pairs +=
          length > kDocWindow ? kDocWindow * (2 * length - kDocWindow) : length * length;
      begin = t + 1;
    }
    return ok;
  }
  /// Two steps of 12 micro-batches, of which this rank reads some: rows, and contents of all ranks.
  bool trains_right(Dataset& data, const MicroBatchOrder& order) {
    const Sampler sampler(1300, kDocBlock, kDocSeed);
    data.start_training(order);
    bool ok = true;
    for (std::int64_t step = 0; step < 2; ++step) {
      const DocumentCounts all = data.step_contents(step);
      DocumentCounts counts, mine;
      for (std::int64_t call = step * order.per_rank; call < (step + 1) * order.per_rank; ++call) {
        const Batch& batch = data.next();
        const std::int64_t before = mine.targets;
        ok = ok && batch.micro_batch == order.micro_batch(call);
        for (std::int64_t row = 0; row < kDocRows; ++row)
          ok = ok &&
               is_row(batch, row, sampler.window(batch.first_sample + row).start, kDocBlock, mine);
        ok = ok && batch.valid == mine.targets - before;
      }
      counts = mine;
      if (order.per_rank < order.per_step) {
        std::int64_t sums[] = {mine.targets, mine.pairs, mine.window_pairs};
        comm().all_reduce(sums, 3, DType::i64, ReduceOp::sum);
        counts = {sums[0], sums[1], sums[2]};
      }
      ok = ok && all == counts && counts.targets < 12 * kDocRows * kDocBlock;
    }
    return ok;
  }
  bool evaluates_right(Dataset& data) {
    bool ok = true;
    DocumentCounts counts;
    std::int64_t valid = 0;
    for (std::int64_t call = 0; call < data.eval_calls(); ++call) {
      const Batch& batch = data.eval_batch(call);
      for (std::int64_t row = 0; row < kDocRows; ++row) {
        const std::int64_t start = (batch.micro_batch * kDocRows + row) * kDocBlock;
        const std::int64_t targets = std::clamp<std::int64_t>(199 - start, 0, kDocBlock);
        ok = ok && is_row(batch, row, 1300 + start, targets, counts);
      }
      valid += batch.valid;
    }
    return ok && valid == counts.targets;
  }

  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> folder_;
  std::vector<std::uint16_t> tokens_;
};

TEST_F(DocumentsTest, SameRowsAndContentsForEveryReader) {
  const std::int64_t mine = 12 / comm().size();
  int slots = 1;  // none is read ahead, one step, several
  for (const auto kind :
       {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter, ReaderKind::node})
    for (const auto preload : {Preload::none, Preload::host}) {
      DataConfig c = config();
      c.reader.kind = kind;
      c.reader.preload = preload;
      c.slots = slots;
      slots = slots == 1 ? 2 : slots == 2 ? 40 : 1;
      const auto data = Dataset::open(comm(), c);
      EXPECT_ALL_RANKS(trains_right(*data, {0, 12, mine * comm().rank(), mine})) << name_of(kind);
      EXPECT_ALL_RANKS(evaluates_right(*data)) << name_of(kind);
      if (kind != ReaderKind::own) continue;
      EXPECT_ALL_RANKS(trains_right(*data, {1000, 12, mine * comm().rank(), mine})) << "resumed";
    }
}

// One rank reads, all get its rows and the contents of the step.
TEST_F(DocumentsTest, PeersGetTheDocumentsToo) {
  const auto peers = Mesh::over_world(Layout(test::world_size(), 1, 1, 1), Transport::automatic);
  DataConfig c = config();
  c.peers = &peers->along(Axis::tensor);
  const auto data = Dataset::open(peers->along(Axis::data), c);
  EXPECT_ALL_RANKS(trains_right(*data, {7, 4, 0, 4}));
  EXPECT_ALL_RANKS(evaluates_right(*data));
}

TEST_F(DocumentsTest, RefusalsReachAllRanks) {
  DataConfig c = config();
  c.document_end = -1;
  const std::string said = test::data_error_of([&] { Dataset::open(comm(), c); });
  EXPECT_ALL_RANKS(said.find("unknown where a document ends in") != std::string::npos) << said;
  c.document_end = 7;
  bool refused = false;
  try {
    Dataset::open(comm(), c);
  } catch (const DeckError& error) {
    refused = std::string(error.what()).find("is 7, the vocabulary has 7") != std::string::npos;
  }
  EXPECT_ALL_RANKS(refused);
}

TEST_F(DocumentsTest, RandomTokensHaveDocuments) {
  DataConfig c = config();
  c.train.clear();
  c.synthetic = true;
  c.document_end = -1;
  const auto data = Dataset::open(comm(), c);
  data->start_training({0, comm().size(), comm().rank(), 1});
  std::int64_t targets = 0, ends = 0;
  const DocumentCounts counts = data->step_contents(0);
  const Batch& batch = data->next();
  for (std::int64_t i = 0; i < batch.inputs.count(); ++i) {
    ends += batch.inputs.as<std::int32_t>()[i] == 0;
    targets += batch.targets.as<std::int32_t>()[i] != kIgnoredTarget;
  }
  EXPECT_ALL_RANKS(ends > 0 && targets + ends == kDocRows * kDocBlock && batch.valid == targets);
  comm().all_reduce(&targets, 1, DType::i64, ReduceOp::sum);
  EXPECT_ALL_RANKS(counts.targets == targets);
}

}  // namespace
}  // namespace choir
