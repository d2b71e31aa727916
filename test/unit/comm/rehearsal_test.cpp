#include "src/comm/null_communicator.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/null_communicator.hpp"

namespace choir {
namespace {

struct RehearsalTest : ::testing::Test {
  ~RehearsalTest() override { std::filesystem::remove_all(folder); }
  std::string folder = [] {
    std::string path = testing::TempDir() + "choir_rehearsal_" + std::to_string(::getpid());
    std::filesystem::create_directories(path);
    return path;
  }();
  std::string script = folder + "/script";
  Rehearsal book{0, script};
  std::unique_ptr<Communicator> comm = make_rehearsed_communicator("dp", 0, 5, book);
};

template <class T>
void expect_sum(Communicator& comm, T term, T sum) {
  std::array<T, 3> data{term, term, term};
  comm.all_reduce(data.data(), 2, DTypeOf<T>::value, ReduceOp::sum);
  const auto value = [](T x) { return static_cast<double>(static_cast<float>(x)); };
  EXPECT_EQ(value(data[0]), value(sum));
  EXPECT_EQ(value(data[1]), value(sum));
  EXPECT_EQ(value(data[2]), value(term)) << "beyond the end";
}

TEST_F(RehearsalTest, SumsAreThoseOfEqualTerms) {
  expect_sum<double>(*comm, 1.5, 7.5);
  expect_sum<float>(*comm, 1.5f, 7.5f);
  expect_sum<bf16>(*comm, bf16(1.5f), bf16(7.5f));
  expect_sum<f16>(*comm, f16(1.5f), f16(7.5f));
  expect_sum<std::int64_t>(*comm, -3, -15);
  expect_sum<std::int32_t>(*comm, -3, -15);
  std::array<float, 1> most{2.0f};
  comm->all_reduce(most.data(), 1, DType::f32, ReduceOp::max);
  EXPECT_EQ(most[0], 2.0f);
}

TEST_F(RehearsalTest, EverybodySaysWhatThisRankSays) {
  const auto third = make_rehearsed_communicator("dp", 2, 4, book);
  std::array<std::int32_t, 4> gathered{0, 0, 7, 0};
  third->all_gather(gathered.data(), 1, DType::i32);
  EXPECT_EQ(gathered, (std::array<std::int32_t, 4>{7, 7, 7, 7}));
  std::array<std::int32_t, 4> blocks{1, 2, 3, 4};
  third->start_reduce_scatter(blocks.data(), 1, DType::i32, ReduceOp::sum).wait();
  EXPECT_EQ(blocks, (std::array<std::int32_t, 4>{1, 2, 12, 4}));
  const std::array<std::int32_t, 4> sent{1, 2, 3, 4};
  std::array<std::int32_t, 4> received{};
  third->all_to_all(sent.data(), received.data(), sizeof(std::int32_t));
  EXPECT_EQ(received, (std::array<std::int32_t, 4>{3, 3, 3, 3}));
  std::array<char, 4> letters{'a', 'b', 'c', 'd'};
  third->receive(letters.data(), 2, 0, 0);
  EXPECT_EQ(letters, (std::array<char, 4>{0, 0, 'c', 'd'}));
}

TEST_F(RehearsalTest, TheFirstRankHearsEqualTexts) {
  EXPECT_EQ(gather_texts(*comm, "node"), (std::vector<std::string>(5, "node")));
}

TEST_F(RehearsalTest, OthersHearWhatTheFirstRankSaid) {
  std::string text = "a deck";
  broadcast_text(*comm, text);
  std::int32_t more = 4711;
  comm->broadcast(&more, sizeof more, 0);
  book.finish();

  Rehearsal other(3, script);
  const auto there = make_rehearsed_communicator("dp", 3, 5, other);
  std::string heard;
  broadcast_text(*there, heard);
  EXPECT_EQ(heard, "a deck");
  std::int64_t wrong = 1;
  EXPECT_THROW(there->broadcast(&wrong, sizeof wrong, 0), CommError) << "4 bytes were said, not 8";
  there->broadcast(&wrong, sizeof wrong, 0);
  EXPECT_EQ(wrong, 0) << "nothing is left";
}

TEST_F(RehearsalTest, ThereIsNoScriptBeforeTheFirstRank) {
  EXPECT_THROW(Rehearsal(1, folder + "/none"), StorageError);
}

TEST_F(RehearsalTest, CallsAreNotedByPhaseAndGroup) {
  std::array<float, 5> data{};
  comm->barrier();  // before the first phase
  book.enter("start");
  comm->all_reduce(data.data(), 5, DType::f32, ReduceOp::sum);
  book.enter("step");
  comm->start_all_gather(data.data(), 1, DType::f32).wait();
  const auto tensor = make_rehearsed_communicator("tp", 1, 2, book);
  tensor->all_reduce(data.data(), 2, DType::f32, ReduceOp::sum);
  make_rehearsed_communicator("pp", 0, 1, book)->barrier();  // alone
  book.enter("start");
  comm->duplicate("dp again")->barrier();
  const std::vector<RehearsedPhase> phases = book.finish();
  ASSERT_EQ(phases.size(), 2u);
  EXPECT_EQ(phases[0].name, "start");
  EXPECT_EQ(phases[0].calls(), 2);
  EXPECT_EQ(phases[0].bytes(), 20);
  EXPECT_EQ(phases[1].name, "step");
  ASSERT_EQ(phases[1].groups.size(), 2u);
  EXPECT_EQ(phases[1].groups[0].name, "dp");
  EXPECT_EQ(phases[1].groups[0].ranks, 5);
  EXPECT_EQ(phases[1].groups[0].bytes, 20);
  EXPECT_EQ(phases[1].groups[1].name, "tp");
  EXPECT_EQ(phases[1].groups[1].bytes, 8);
}

TEST_F(RehearsalTest, FilesAreNoted) {
  book.enter("start");
  std::ofstream(folder + "/file") << std::string(100000, 'x');
  const std::vector<RehearsedPhase> phases = book.finish();
  EXPECT_GE(phases[0].file_bytes, 100000);
  EXPECT_GE(phases[0].file_calls, 1);
  EXPECT_GT(phases[0].resident, 0);
}

TEST_F(RehearsalTest, AMeshKnowsItsBookAndItsSubgroups) {
  const auto mesh = Mesh::rehearsed(Layout(2, 1, 8, 2), 21, 8, book);
  EXPECT_EQ(rehearsal_of(mesh->world()), &book);
  EXPECT_EQ(rehearsal_of(mesh->along(Axis::data)), &book);
  EXPECT_EQ(mesh->node().size(), 8);
  EXPECT_EQ(mesh->nodes(), 4);
  const int here = mesh->replicas().rank();
  const auto part = mesh->replica_group({here - here % 2, here - here % 2 + 1}, "part");
  EXPECT_EQ(rehearsal_of(*part), &book);
  EXPECT_EQ(part->size(), 2);
  EXPECT_EQ(rehearsal_of(*make_null_communicator("dp", 0, 2)), nullptr);
}

}  // namespace
}  // namespace choir
