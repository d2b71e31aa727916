// Tests of checkpoints that n ranks save and m ranks load; and of a rank that fails while the
// others do not.
#include "src/store/store.hpp"

#include <gtest/gtest.h>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/store/collectives.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using test::Cut;
using test::TensorSet;

class CheckpointRanks : public ::testing::Test {
 protected:
  CheckpointRanks() : world_(make_mpi_communicator(MPI_COMM_WORLD, "world")) {
    if (world_->rank() == 0) run_ = std::make_unique<test::TemporaryDirectory>();
    if (run_) folder_ = run_->path() + "/checkpoints";
    share_text(*world_, folder_);
  }
  ~CheckpointRanks() override { world_->barrier(); }

  /// The first n ranks; nullptr on the others.
  std::unique_ptr<Communicator> first(int n) {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_->rank() < n ? 0 : MPI_UNDEFINED, 0, &part);
    if (part == MPI_COMM_NULL) return nullptr;
    auto comm = make_mpi_communicator(part, "first " + std::to_string(n));
    MPI_Comm_free(&part);
    return comm;
  }
  /// Collective: the sum over ranks, so that all ranks come to the same result.
  std::int64_t all(std::int64_t mine) {
    world_->all_reduce(&mine, 1, DType::i64, ReduceOp::sum);
    return mine;
  }

  std::unique_ptr<Communicator> world_;
  std::unique_ptr<test::TemporaryDirectory> run_;
  std::string folder_;
};

TEST_F(CheckpointRanks, AnyNumberSavesAnyNumberLoads) {
  std::uint32_t reference = 0;
  for (int n = 1; n <= world_->size(); ++n)
    for (const Cut cut : {Cut::slices, Cut::rows}) {
      std::int64_t bad = 0;
      if (const auto writers = first(n)) {
        TensorSet set(cut, writers->rank(), n);
        set.fill();
        const SaveResult result =
            CheckpointStore(folder_, *writers).save(test::meta_of(7), set.tensors());
        bad += !result.saved;
        const Manifest manifest = read_manifest(result.path);
        if (reference == 0) reference = manifest.state_crc32c;
        bad += manifest.state_crc32c != reference;  // the same file for any writer
      }
      EXPECT_EQ(all(bad), 0) << n << " ranks save";
      for (int m = 1; m <= world_->size(); ++m) {
        const auto readers = first(m);
        for (const Cut want : {Cut::slices, Cut::rows, Cut::everything}) {
          bad = 0;
          if (readers) {
            CheckpointStore store(folder_, *readers);
            const auto found = store.find_newest_valid();
            TensorSet set(want, readers->rank(), m);
            set.poison();
            store.load(*found, set.tensors());
            bad = set.wrong() + (found->json != test::meta_of(7).json) + !found->skipped.empty();
          }
          EXPECT_EQ(all(bad), 0) << n << " ranks save, " << m << " load";
        }
      }
    }
}

TEST_F(CheckpointRanks, AFailureOfAnyRankIsAgreed) {
  const int last = world_->size() - 1;
  TensorSet set(Cut::slices, world_->rank(), world_->size(), 1);
  set.fill();
  const bool saved = CheckpointStore(folder_, *world_).save(test::meta_of(1), set.tensors()).saved;
  EXPECT_EQ(all(!saved), 0);
  for (const std::string instant : {"write", "fsync"}) {
    StoreOptions options;
    options.fault = [&](const char* now) {
      if (world_->rank() == last && instant == now)
        throw std::runtime_error("the disk of one rank");
    };
    const SaveResult result =
        CheckpointStore(folder_, *world_, options).save(test::meta_of(2), set.tensors());
    // Messages of a single rank have no rank number.
    const std::string who = world_->size() > 1 ? "rank " + std::to_string(last) : "";
    const bool told = result.reason.find(who) != std::string::npos &&
                      result.reason.find("the disk of one rank") != std::string::npos;
    EXPECT_EQ(all(result.saved || !told), 0) << result.reason;
    EXPECT_EQ(all(fs::exists(folder_ + "/step_00000002.tmp")), 0);
    const auto found = CheckpointStore(folder_, *world_).find_newest_valid();
    EXPECT_EQ(all(!found || found->manifest.step != 1), 0);
  }
}

TEST_F(CheckpointRanks, OneReadsForAllThatWantTheSame) {
  TensorSet set(Cut::slices, world_->rank(), world_->size(), 3);
  set.fill();
  CheckpointStore store(folder_, *world_);
  const bool saved = store.save(test::meta_of(3), set.tensors()).saved;
  EXPECT_EQ(all(!saved), 0);
  const auto found = store.find_newest_valid();
  TensorSet wanted(Cut::everything, world_->rank(), world_->size(), 3);
  wanted.poison();
  store.load_shared(*found, wanted.tensors(), *world_);
  EXPECT_EQ(all(wanted.wrong()), 0);
}

// A file system does this if two nodes write back the same page.
TEST_F(CheckpointRanks, ABorderThatAnotherRankWroteOverIsAReason) {
  if (world_->size() == 1) GTEST_SKIP() << "nobody writes beside a single rank";
  TensorSet set(Cut::slices, world_->rank(), world_->size(), 4);
  set.fill();
  StoreOptions options;
  options.fault = [&](const char* now) {
    if (world_->rank() != 0 || std::string(now) != "fsync") return;
    const std::string state = folder_ + "/step_00000004.tmp/state.h5";
    const auto tensors = set.tensors();
    std::fstream file(state, std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const auto& piece = tensors.front().pieces.front();
    const std::string own(static_cast<const char*>(piece.data), 16);
    const std::size_t at = bytes.find(own);
    ASSERT_NE(at, std::string::npos);
    file.seekp(static_cast<std::streamoff>(at)).write("overwritten", 11);
  };
  const SaveResult result =
      CheckpointStore(folder_, *world_, options).save(test::meta_of(4), set.tensors());
  const bool told = result.reason.find("than were written") != std::string::npos;
  EXPECT_EQ(all(result.saved || !told), 0) << result.reason;
}

TEST_F(CheckpointRanks, DamageInAnyRanksShareIsSeenByAll) {
  TensorSet set(Cut::slices, world_->rank(), world_->size(), 1);
  set.fill();
  for (const std::int64_t step : {1, 2})
    CheckpointStore(folder_, *world_).save(test::meta_of(step), set.tensors());
  const std::string state = folder_ + "/step_00000002/state.h5";
  const auto bytes = static_cast<std::int64_t>(fs::file_size(state));
  for (int i = 0; i < 8; ++i) {
    const std::int64_t at = bytes * i / 8 + 1000;
    world_->barrier();
    if (world_->rank() == 0) test::flip_bit(state, at);
    world_->barrier();
    const auto found = CheckpointStore(folder_, *world_).find_newest_valid();
    EXPECT_EQ(all(!found || found->manifest.step != 1 || found->skipped.size() != 1), 0) << at;
    world_->barrier();
    if (world_->rank() == 0) test::flip_bit(state, at);
  }
  world_->barrier();
  if (world_->rank() == 0)
    for (const char* step : {"/step_00000001", "/step_00000002"})
      fs::resize_file(folder_ + step + "/state.h5", 5);
  world_->barrier();
  bool refused = false;
  try {
    CheckpointStore(folder_, *world_).find_newest_valid();
  } catch (const StorageError& error) {
    const std::string text = error.what();
    refused = text.find("step_00000001") != text.npos && text.find("step_00000002") != text.npos;
  }
  EXPECT_EQ(all(!refused), 0);
}

TEST_F(CheckpointRanks, ListsThatDifferAreRefusedOnAll) {
  TensorSet set(Cut::slices, world_->rank(), world_->size());
  bool refused = false;
  set.tensors()[0].pieces.clear();  // nobody owns the first tensor
  try {
    CheckpointStore(folder_, *world_).save(test::meta_of(1), set.tensors());
  } catch (const Error& error) {
    refused = std::string(error.what()).find("own 0 elements") != std::string::npos;
  }
  EXPECT_EQ(all(!refused), 0);
  EXPECT_EQ(all(fs::exists(folder_)), 0);
}

TEST_F(CheckpointRanks, LoadErrorsReachAll) {
  TensorSet set(Cut::slices, world_->rank(), world_->size());
  set.fill();
  CheckpointStore store(folder_, *world_);
  store.save(test::meta_of(1), set.tensors());
  const Checkpoint found = *store.find_newest_valid();
  set.tensors()[1].name = "parameters/unknown";
  bool named = false;
  try {
    store.load(found, set.tensors());
  } catch (const StorageError& error) {
    named = std::string(error.what()).find("parameters/unknown") != std::string::npos;
  }
  EXPECT_EQ(all(!named), 0);
}

}  // namespace
}  // namespace choir
