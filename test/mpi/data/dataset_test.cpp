// Tests that a data set gives the same batches for any reader, number of ranks and files; the
// expected tokens come from memory and do not use the readers.
#include "src/data/text/dataset.hpp"

#include <cstring>
#include <filesystem>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/models/batch.hpp"
#include "src/data/text/prepare_text.hpp"
#include "src/data/text/token_samples.hpp"
#include "src/models/gpt/token_data.hpp"
#include "test/support/count_allocations.hpp"
#include "test/support/mpi_test.hpp"
#include "test/support/separate_device.hpp"
#include "test/unit/data/scratch_folder.hpp"

namespace choir {
namespace {

using test::ScratchFolder;

constexpr std::int64_t kBlock = 16, kRows = 3;
constexpr std::uint64_t kSeed = 99;

class DatasetTest : public testing::Test {
 protected:
  DatasetTest()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    comm().broadcast(&id, sizeof id, 0);
    if (comm().rank() == 0) folder_ = std::make_unique<ScratchFolder>(id, true);
    comm().barrier();
    if (comm().rank() != 0) folder_ = std::make_unique<ScratchFolder>(id, false);
    for (int i = 0; i < 1500; ++i) text_ += static_cast<char>('a' + (i * i + i / 7) % 23);
    if (comm().rank() == 0) test::write_bytes(*folder_ / "text.txt", text_);
    comm().barrier();
  }
  ~DatasetTest() override { comm().barrier(); }

  Communicator& comm() { return mesh_->along(Axis::data); }

  DataConfig config(const std::string& train) {
    DataConfig c;
    c.train = {train};
    c.seed = kSeed;
    c.block_size = kBlock;
    c.rows = kRows;
    c.cache_dir = *folder_ / "cache";
    return c;
  }
  // Token i of the text: ids are ranks of sorted letters.
  std::int32_t token(std::int64_t i) const {
    return static_cast<std::int32_t>(letters_.find(text_[static_cast<std::size_t>(i)]));
  }
  void learn_letters() {
    letters_ = text_;
    std::sort(letters_.begin(), letters_.end());
    letters_.erase(std::unique(letters_.begin(), letters_.end()), letters_.end());
  }
  bool is_sample(const Batch& batch, std::int64_t row, std::int64_t start, std::int64_t targets) {
    const auto* inputs = batch.inputs.as<std::int32_t>() + row * kBlock;
    const auto* expected = batch.targets.as<std::int32_t>() + row * kBlock;
    for (std::int64_t t = 0; t < kBlock; ++t) {
      const bool counts = t < targets;
      if (inputs[t] != (counts ? token(start + t) : 0)) return false;
      if (expected[t] != (counts ? token(start + t + 1) : -1)) return false;
    }
    return true;
  }
  // Micro-batches of two steps of 12 micro-batches, compared with the sampler and the text in
  // memory.
  bool trains_right(Dataset& data, std::int64_t first_sample) {
    const Sampler sampler(1350, kBlock, kSeed);
    const std::int64_t mine = 12 / comm().size();
    const MicroBatchOrder order{first_sample, 12, mine * comm().rank(), mine};
    data.start_training(order);
    bool ok = true;
    for (std::int64_t call = 0; call < 2 * mine; ++call) {
      const Batch& batch = data.next();
      const std::int64_t j = call / mine * 12 + mine * comm().rank() + call % mine;
      ok = ok && batch.micro_batch == j && batch.first_sample == first_sample + j * kRows &&
           batch.valid == kRows * kBlock;
      for (std::int64_t row = 0; row < kRows; ++row)
        ok = ok && is_sample(batch, row, sampler.window(batch.first_sample + row).start, kBlock);
    }
    return ok;
  }
  // Validation: 150 tokens after the 1350 for training.
  bool evaluates_right(Dataset& data) {
    bool ok = true;
    std::int64_t valid = 0;
    for (std::int64_t call = 0; call < data.eval_calls(); ++call) {
      const Batch& batch = data.eval_batch(call);
      ok = ok && batch.micro_batch == call * comm().size() + comm().rank();
      for (std::int64_t row = 0; row < kRows; ++row) {
        const std::int64_t start = (batch.micro_batch * kRows + row) * kBlock;
        const std::int64_t targets = std::clamp<std::int64_t>(149 - start, 0, kBlock);
        ok = ok && is_sample(batch, row, 1350 + start, targets);
      }
      valid += batch.valid;
    }
    comm().all_reduce(&valid, 1, DType::i64, ReduceOp::sum);
    return ok && valid == 149;
  }

  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> folder_;
  std::string text_, letters_;
};

TEST_F(DatasetTest, SameBatchesForEveryReaderAndSplit) {
  learn_letters();
  for (const std::int64_t per_shard : {100000, 200, 31}) {
    const std::string folder = *folder_ / fmt::format("shards_{}", per_shard);
    if (comm().rank() == 0) {
      PrepareOptions options;
      options.tokens_per_shard = per_shard;
      prepare_text({*folder_ / "text.txt"}, folder, options);
    }
    comm().barrier();
    for (const auto kind :
         {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter, ReaderKind::node})
      for (const auto preload : {Preload::none, Preload::host, Preload::device}) {
        DataConfig c = config(folder);
        c.reader.kind = kind;
        c.reader.preload = preload;
        const auto data = Dataset::open(comm(), c);
        EXPECT_ALL_RANKS(data->vocab_size() == 23 && data->train_tokens() == 1350 &&
                         data->val_tokens() == 150);
        EXPECT_ALL_RANKS(trains_right(*data, 0)) << name_of(kind);
        EXPECT_ALL_RANKS(trains_right(*data, 1000)) << name_of(kind) << " resumed";
        EXPECT_ALL_RANKS(evaluates_right(*data)) << name_of(kind);
      }
  }
}

// Rows that are gathered in the memory of a device that the host cannot read, whole and as the
// shares of two context ranks, of which the second pads each of its runs.
TEST_F(DatasetTest, ResidentTokensAreThoseThatAreRead) {
  learn_letters();
  const std::string folder = *folder_ / "resident";
  if (comm().rank() == 0) {
    PrepareOptions options;
    options.tokens_per_shard = 200;
    prepare_text({*folder_ / "text.txt"}, folder, options);
  }
  comm().barrier();
  DataConfig c = config(folder);
  c.block_size = 15;
  test::SeparateDevice device;  // outlives the data sets
  const auto read = Dataset::open(comm(), c);
  c.reader.preload = Preload::device;
  const auto kept = Dataset::open(comm(), c);
  EXPECT_ALL_RANKS(read->resident_bytes(false) == 0);
  EXPECT_ALL_RANKS(kept->resident_bytes(false) == (1350 + 2 * 15) * 4);
  kept->make_resident(device);
  const MicroBatchOrder order{7, 4 * comm().size(), comm().rank(), 4, comm().size()};
  read->start_training(order);
  kept->start_training(order);
  const auto context = Mesh::planned(Layout(1, 2, 1, 1), 1, 2);
  bool ok = true;
  for (int call = 0; call < 8; ++call) {
    const Batch &a = read->next(), &b = kept->next();
    ok = ok && a.micro_batch == b.micro_batch && a.first_sample == b.first_sample &&
         a.valid == b.valid;
    const ModelBatch expected = token_batch(a), resident = token_batch(b);
    for (const bool shared : {false, true}) {
      BatchRanks ranks;
      if (shared) ranks.context.communicator = &context->along(Axis::context);
      for (std::size_t f = 0; f < 2; ++f) {
        const BatchField& field = expected.fields()[f];
        TensorView view = field.view;
        view.shape = share_shape(expected, field, ranks);
        std::vector<std::byte> right(view.bytes()), seen(view.bytes());
        if (shared)
          copy_share(expected, field, ranks, right.data());
        else
          std::memcpy(right.data(), field.view.data, right.size());
        const Buffer there(device, view.bytes());
        gather_resident(Stream(device), resident, resident.fields()[f], ranks, there.data());
        device.copy_to_host(seen.data(), there.data(), seen.size());
        ok = ok && right == seen;
      }
    }
  }
  EXPECT_ALL_RANKS(ok);
  c.vocab_size = 22;
  EXPECT_ALL_RANKS(!test::data_error_of([&] { Dataset::open(comm(), c); }).empty());
}

TEST_F(DatasetTest, ResidentTokensOutsideTheVocabularyAreRefused) {
  const std::string file = *folder_ / "train.bin";
  if (comm().rank() == 0) {
    std::string bytes;
    for (int i = 0; i < 400; ++i) bytes += {static_cast<char>(i == 300 ? 77 : i % 50), '\0'};
    test::write_bytes(file, bytes);
  }
  comm().barrier();
  DataConfig c = config(file);
  c.vocab_size = 60;
  c.verify_bytes = 0;
  c.reader.preload = Preload::device;
  test::SeparateDevice device;
  const auto data = Dataset::open(comm(), c);
  const std::string said = test::data_error_of([&] { data->make_resident(device); });
  EXPECT_ALL_RANKS(said.find("token 77 at file") != std::string::npos &&
                   said.find("outside the vocabulary of 60") != std::string::npos)
      << said;
}

TEST_F(DatasetTest, TextIsPreparedOnFirstUseAndOnlyThen) {
  learn_letters();
  DataConfig c = config(*folder_ / "text.txt");
  std::string said;
  c.say = [&](const std::string& line) { said += line; };
  for (const char* words : {"preparing text", "is already prepared"}) {
    said.clear();
    const auto data = Dataset::open(comm(), c);
    EXPECT_ALL_RANKS((said.find(words) != std::string::npos) == (comm().rank() == 0)) << said;
    EXPECT_ALL_RANKS(data->vocabulary() != nullptr && data->vocabulary()->size() == 23);
    EXPECT_ALL_RANKS(trains_right(*data, 0));
    EXPECT_ALL_RANKS(evaluates_right(*data));
  }
}

TEST_F(DatasetTest, ValidationTextTakesTheTrainingVocabulary) {
  if (comm().rank() == 0) {
    test::write_bytes(*folder_ / "val.txt", "abcabc");
    test::write_bytes(*folder_ / "odd.txt", "abcX");
  }
  comm().barrier();
  DataConfig c = config(*folder_ / "text.txt");
  c.val = {*folder_ / "val.txt"};
  const auto data = Dataset::open(comm(), c);
  EXPECT_ALL_RANKS(data->train_tokens() == 1500 && data->val_tokens() == 6);
  c.val = {*folder_ / "odd.txt"};
  const std::string said = test::data_error_of([&] { Dataset::open(comm(), c); });
  EXPECT_ALL_RANKS(said.find("'X' (U+0058) at byte 3") != std::string::npos) << said;
}

TEST_F(DatasetTest, RefusalsReachAllRanks) {
  const std::string folder = *folder_ / "out";
  if (comm().rank() == 0) prepare_text({*folder_ / "text.txt"}, folder, {});
  comm().barrier();
  const auto said = [&](const DataConfig& c) {
    return test::data_error_of([&] { Dataset::open(comm(), c); });
  };
  const auto expect = [&](const DataConfig& c, const std::string& words) {
    const std::string text = said(c);
    EXPECT_ALL_RANKS(text.find(words) != std::string::npos) << "said '" << text << "'";
  };
  DataConfig c = config(folder);
  c.vocab_size = 20;
  expect(c, "model.vocab_size is 20, the data");
  c = config(folder);
  c.vocab_hash = 12345;
  expect(c, "is not that of the checkpoint (0000000000003039)");
  c = config(folder);
  c.block_size = 1350;
  expect(c, "has 1,350 tokens, fewer than the 1,351 of one sample");
  expect(config(*folder_ / "nothing.tok"), "does not exist");
  if (comm().rank() == 0) {
    std::string bytes = test::read_bytes(folder + "/val_00000.tok");
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    test::write_bytes(folder + "/val_00000.tok", bytes);
  }
  comm().barrier();
  expect(config(folder), "val_00000.tok' is corrupt");
}

// Ranks that need the same samples: one reads, all get them; all are informed of a read error.
TEST_F(DatasetTest, PeersGetWhatOneOfThemReads) {
  learn_letters();
  const auto peers = Mesh::over_world(Layout(test::world_size(), 1, 1, 1), Transport::automatic);
  Communicator& tensor = peers->along(Axis::tensor);
  const Sampler sampler(1350, kBlock, kSeed);
  const std::string folder = *folder_ / "prepared";
  if (comm().rank() == 0) prepare_text({*folder_ / "text.txt"}, folder, {});
  comm().barrier();
  for (const auto preload : {Preload::none, Preload::host}) {
    DataConfig c = config(folder);
    c.reader.preload = preload;
    c.peers = &tensor;
    const auto data = Dataset::open(peers->along(Axis::data), c);
    EXPECT_ALL_RANKS(data->vocab_size() == 23 && data->has_validation());
    bool ok = true;
    data->start_training({7, 4, 0, 4});
    for (std::int64_t call = 0; call < 8; ++call) {
      const Batch& batch = data->next();
      ok = ok && batch.micro_batch == call && batch.first_sample == 7 + call * kRows &&
           batch.valid == kRows * kBlock;
      for (std::int64_t row = 0; row < kRows; ++row)
        ok = ok && is_sample(batch, row, sampler.window(batch.first_sample + row).start, kBlock);
    }
    EXPECT_ALL_RANKS(ok);
    std::int64_t valid = 0;
    for (std::int64_t call = 0; call < data->eval_calls(); ++call)
      valid += data->eval_batch(call).valid;
    EXPECT_ALL_RANKS(valid == 149);
    if (preload == Preload::none) continue;
    auto bytes = static_cast<std::int64_t>(data->bytes());
    tensor.broadcast(&bytes, sizeof bytes, 0);
    EXPECT_ALL_RANKS(tensor.rank() == 0 || static_cast<std::int64_t>(data->bytes()) < bytes)
        << "only the first holds the file";
  }
  DataConfig c = config(folder);
  c.peers = &tensor;
  const auto data = Dataset::open(peers->along(Axis::data), c);
  comm().barrier();
  if (comm().rank() == 0) std::filesystem::resize_file(folder + "/train_00000.tok", 200);
  comm().barrier();
  const std::string said = test::data_error_of([&] {
    data->start_training({0, 40, 0, 40});
    for (int call = 0; call < 40; ++call) data->next();
  });
  EXPECT_ALL_RANKS(said.find("train_00000.tok") != std::string::npos) << said;
}

TEST_F(DatasetTest, RawFilesNeedAVocabularySize) {
  if (comm().rank() == 0) {
    const std::vector<std::uint16_t> tokens(100, 77);
    test::write_bytes(*folder_ / "train.bin", test::packed<std::uint16_t>(tokens));
  }
  comm().barrier();
  DataConfig c = config(*folder_ / "train.bin");
  bool refused = false;
  try {
    Dataset::open(comm(), c);
  } catch (const DeckError& error) {
    refused = std::string(error.what()).find("how large its vocabulary") != std::string::npos;
  }
  EXPECT_ALL_RANKS(refused);
  c.vocab_size = 50257;
  const auto data = Dataset::open(comm(), c);
  EXPECT_ALL_RANKS(!data->has_validation() && data->vocabulary() == nullptr &&
                   data->eval_calls() == 0);
  c.vocab_size = 77;
  const std::string said = test::data_error_of([&] { Dataset::open(comm(), c); });
  EXPECT_ALL_RANKS(said.find("token 0 is 77, the vocabulary has 77 entries") != std::string::npos);
}

TEST_F(DatasetTest, SyntheticNeedsNoFile) {
  DataConfig c = config("");
  c.train.clear();
  c.synthetic = true;
  c.vocab_size = 50257;
  const auto data = Dataset::open(comm(), c);
  data->start_training({30, comm().size(), comm().rank(), 1});
  BatchBuffer expected(kRows, kBlock);
  bool ok = true;
  for (int call = 0; call < 4; ++call) {
    const Batch& batch = data->next();
    expected.batch.first_sample = 30 + (call * comm().size() + comm().rank()) * kRows;
    fill_synthetic(kSeed, "data.synthetic", 50257, expected.batch);
    ok =
        ok && std::memcmp(batch.inputs.data, expected.batch.inputs.data, batch.inputs.bytes()) == 0;
  }
  EXPECT_ALL_RANKS(ok);
  std::int64_t valid = 0;
  for (std::int64_t call = 0; call < data->eval_calls(); ++call)
    valid += data->eval_batch(call).valid;
  comm().all_reduce(&valid, 1, DType::i64, ReduceOp::sum);
  EXPECT_ALL_RANKS(valid == 8 * kRows * kBlock);
}

// Two texts in shares: the blend of the texts in memory gives the samples of every rank, from the
// beginning and resumed; each validation set has its own text, and changes are reported.
TEST_F(DatasetTest, BlendsTextsAndNamesValidationSets) {
  learn_letters();
  if (comm().rank() == 0) {
    test::write_bytes(*folder_ / "b1.txt", text_.substr(0, 400));
    test::write_bytes(*folder_ / "b2.txt", text_.substr(400, 800));
    test::write_bytes(*folder_ / "held1.txt", text_.substr(1200, 100));
    test::write_bytes(*folder_ / "held2.txt", text_.substr(1300, 200));
  }
  comm().barrier();
  DataConfig c = config("");
  c.train.clear();
  c.blend = {*folder_ / "b1.txt", *folder_ / "b2.txt"};
  std::vector<TokenPool> pools{{{0}, 2}, {{1}, 1}};
  c.pools = [&](std::span<const std::int64_t>) { return pools; };
  c.validation = {{"held1", {*folder_ / "held1.txt"}}, {"held2", {*folder_ / "held2.txt"}}};
  const auto data = Dataset::open(comm(), c);
  const std::vector<std::int64_t> lengths{400, 800};
  bool ok = true;
  for (const std::int64_t first : {0, 3000}) {
    TokenBlend blend(pools, c.blend, lengths, kBlock, kSeed);
    data->start_training({first, comm().size(), comm().rank(), 1});
    for (int call = 0; call < 20; ++call) {
      const Batch& batch = data->next();
      for (std::int64_t row = 0; row < kRows; ++row)
        ok = ok && is_sample(batch, row, blend.window(batch.first_sample + row).start, kBlock);
    }
  }
  EXPECT_ALL_RANKS(ok);
  ASSERT_EQ(data->eval_sets(), 2);
  for (const int set : {0, 1}) {
    const std::int64_t begin = set == 0 ? 1200 : 1300, tokens = set == 0 ? 100 : 200;
    EXPECT_ALL_RANKS(data->eval_name(set) == (set == 0 ? "held1" : "held2"));
    std::int64_t valid = 0;
    ok = true;
    for (std::int64_t call = 0; call < data->eval_calls(set); ++call) {
      const Batch& batch = data->eval_batch(call, set);
      for (std::int64_t row = 0; row < kRows; ++row) {
        const std::int64_t start = (batch.micro_batch * kRows + row) * kBlock;
        const auto targets = std::clamp<std::int64_t>(tokens - 1 - start, 0, kBlock);
        ok = ok && is_sample(batch, row, begin + start, targets);
      }
      valid += batch.valid;
    }
    comm().all_reduce(&valid, 1, DType::i64, ReduceOp::sum);
    EXPECT_ALL_RANKS(ok && valid == tokens - 1) << data->eval_name(set);
  }
  const std::string before = data->contents();
  pools[0].probability = 3;
  EXPECT_ALL_RANKS(Dataset::open(comm(), c)->contents() != before);
  pools[0].probability = 2, c.seed = kSeed + 1;
  EXPECT_ALL_RANKS(Dataset::open(comm(), c)->contents() == before);
}

// next() throws an error after the start on every rank, and no rank hangs.
TEST_F(DatasetTest, FailuresUnderWayReachAllRanks) {
  const std::string folder = *folder_ / "shrinks";
  for (const auto kind :
       {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter, ReaderKind::node}) {
    if (comm().rank() == 0) prepare_text({*folder_ / "text.txt"}, folder, {});
    comm().barrier();
    DataConfig c = config(folder);
    c.reader.kind = kind;
    const auto data = Dataset::open(comm(), c);
    data->start_training({0, comm().size(), comm().rank(), 1});
    data->next();
    comm().barrier();
    if (comm().rank() == 0) std::filesystem::resize_file(folder + "/train_00000.tok", 64);
    comm().barrier();
    std::string said;
    for (int call = 0; call < 5 && said.empty(); ++call)
      said = test::data_error_of([&] { data->next(); });
    EXPECT_ALL_RANKS(said.find("train_00000.tok") != std::string::npos) << said;
  }
}

TEST_F(DatasetTest, NothingIsAllocatedForABatch) {
  const std::string folder = *folder_ / "out";
  if (comm().rank() == 0) prepare_text({*folder_ / "text.txt"}, folder, {});
  comm().barrier();
  for (const auto kind :
       {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter, ReaderKind::node}) {
    DataConfig c = config(folder);
    c.reader.kind = kind;
    const auto data = Dataset::open(comm(), c);
    data->start_training({0, comm().size(), comm().rank(), 1});
    for (int call = 0; call < 4; ++call) data->next();
    const std::int64_t before = test::allocations();
    for (int call = 0; call < 20; ++call) data->next();
    const std::int64_t counted = test::allocations() - before;
    EXPECT_ALL_RANKS(counted == 0) << name_of(kind) << ": " << counted;
  }
}

}  // namespace
}  // namespace choir
