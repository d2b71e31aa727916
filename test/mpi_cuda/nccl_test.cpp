// Tests of behavior that only the NCCL communicator has: set-up that hangs, asynchronous errors,
// sums in a tree, and a host that does not wait. Under host execution a library that fails on
// demand plays NCCL.
#include <dlfcn.h>

#include <chrono>
#include <thread>

#include "choir/core/error.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "test/mpi/comm/wild.hpp"
#include "test/mpi_cuda/device_kinds.hpp"
#include "test/support/measured.hpp"

namespace choir::test {
namespace {

/// The switches of test/host_cuda/nccl/nccl_fake.cpp.
struct Fake {
  Fake() {
    void* library = dlopen(nccl_library().c_str(), RTLD_NOW);
    const auto find = [&](auto*& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    find(hold_init, "nccl_fake_hold_init");
    find(fail, "nccl_fake_fail");
    find(be_busy, "nccl_fake_be_busy");
    find(shortest_wait, "nccl_fake_shortest_wait");
  }
  void (*hold_init)(bool) = nullptr;
  void (*fail)(int) = nullptr;
  void (*be_busy)(int) = nullptr;
  double (*shortest_wait)() = nullptr;
};

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (nccl_library().empty()) GTEST_SKIP() << "only under host execution";
    device_ = make_device(DeviceKind::cuda);
    host_ = make_mpi_communicator(MPI_COMM_WORLD, "dp");
    for (int r = 0; r < host_->size(); ++r) options_.ranks.push_back(10 * r);
    options_.library = nccl_library();
  }
  std::unique_ptr<Communicator> make() {
    return make_nccl_communicator(*host_, *device_, "dp", options_);
  }
  /// The message of the CommError that f throws, including the hint; empty if it throws none.
  template <class F>
  static std::string words(const F& f) {
    try {
      f();
    } catch (const CommError& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    return "";
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  std::string members() const {
    std::string text;
    for (const int r : options_.ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
    return text;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> host_;
  NcclOptions options_;
};

TEST_F(Nccl, SetUpThatTakesTooLongNamesTheAxisAndItsRanks) {
  const Fake fake;
  fake.hold_init(true);
  options_.timeout_seconds = 0.2;
  const std::string text = words([&] { make(); });
  fake.hold_init(false);
  EXPECT_ALL_RANKS(has(text, "NCCL on dp (ranks " + members() + ")")) << text;
  EXPECT_ALL_RANKS(has(text, "ncclCommInitRankConfig: not finished after 0.2 s")) << text;
  EXPECT_ALL_RANKS(has(text, "parallel.transport=staged")) << text;
  EXPECT_ALL_RANKS(words([&] { make(); }).empty()) << "and the next one is fine";
}

// A failure on one rank only: the others must not hang, and are informed.
TEST_F(Nccl, SetUpThatHangsOnOneRankFailsOnAll) {
  if (host_->size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const Fake fake;
  fake.hold_init(host_->rank() == 1);
  options_.timeout_seconds = 0.2;
  const std::string text = words([&] { make(); });
  fake.hold_init(false);
  EXPECT_ALL_RANKS(has(text, "rank 1 of the group: ncclCommInitRankConfig")) << text;
}

TEST_F(Nccl, LibraryThatIsNotThere) {
  options_.library = "/nowhere/libnccl.so";
  EXPECT_ALL_RANKS(has(words([&] { make(); }), "/nowhere/libnccl.so"));
  const NcclAvailability none = nccl_availability(options_.library);
  EXPECT_TRUE(none.version.empty());
  EXPECT_NE(none.reason.find("/nowhere/libnccl.so"), std::string::npos);
  EXPECT_EQ(nccl_availability(nccl_library()).version, "2.28.99");
}

TEST_F(Nccl, ErrorOfAPeerShowsAtTheNextCallAndBreaksTheCommunicator) {
  const auto comm = make();
  const Fake fake;
  const auto memory = comm->allocate(64);
  CommRequest& request = comm->start_all_reduce(memory->data(), 4, DType::f32, ReduceOp::sum);
  Stream(*device_).synchronize();
  fake.fail(6);
  const std::string text = words([&] { request.wait(); });
  fake.fail(0);
  EXPECT_ALL_RANKS(has(text, "remote process exited")) << text;
  EXPECT_ALL_RANKS(has(text, "NCCL on dp")) << text;
  const std::string later = words([&] { comm->broadcast(memory->data(), 4, 0); });
  EXPECT_ALL_RANKS(has(later, "broken by an earlier error")) << later;
  device_->synchronize(device_->main_stream());
  host_->barrier();
}

// The GPU waits for a peer that never comes, as in the case that the watchdog handles.
TEST_F(Nccl, AnAbortEndsWhatThePeersNeverJoin) {
  if (host_->size() == 1) GTEST_SKIP() << "needs 2 or more ranks";
  const auto comm = make();
  const auto memory = comm->allocate(64);
  bool aborted = true;
  std::string later = "broken";
  if (host_->rank() == 0) {
    comm->all_reduce(memory->data(), 4, DType::f32, ReduceOp::sum);
    std::thread watchdog([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      aborted = AbortHook::run_all(10);
    });
    Stream(*device_).synchronize();
    watchdog.join();
    later = words([&] { comm->broadcast(memory->data(), 4, 0); });
  }
  EXPECT_ALL_RANKS(aborted);
  EXPECT_ALL_RANKS(has(later, "broken")) << later;
}

// NCCL's abort waits for the graphs, and their owner may be the thread that aborts; one abort must
// not delay another.
TEST_F(Nccl, AnAbortDoesNotWaitForLiveGraphs) {
  const auto first = make(), second = make();
  OnDevice<float> memory(*device_, *first, 100);
  memory.write(std::vector<float>(100, 1.0f));
  const Stream stream(*device_);
  device_->begin_capture(stream.native());
  for (const auto& comm : {first.get(), second.get()})
    comm->all_reduce(memory.data(), 100, DType::f32, ReduceOp::sum);
  const NativeGraph graph = device_->end_capture(stream.native());
  host_->barrier();
  // Only one rank replays: its peers never join.
  if (host_->rank() == 0) device_->launch(graph, stream.native());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(AbortHook::run_all(5));
  stream.synchronize();
  device_->destroy(graph);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (host_->rank() == 0)
    print_measured("an abort with live graphs", took.count(), "s", "below", 2);
  EXPECT_LT(took.count(), 2);
  for (const auto& comm : {first.get(), second.get()})
    EXPECT_FALSE(
        words([&] { comm->all_reduce(memory.data(), 1, DType::f32, ReduceOp::sum); }).empty());
  host_->barrier();
}

TEST_F(Nccl, AnAbortEndsACallThatNcclDoesNotFinish) {
  options_.timeout_seconds = 60;
  const auto comm = make();
  const Fake fake;
  const auto memory = comm->allocate(64);
  fake.be_busy(1 << 30);
  std::thread watchdog([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    AbortHook::run_all(10);
  });
  const std::string text =
      words([&] { comm->all_reduce(memory->data(), 4, DType::f32, ReduceOp::sum); });
  watchdog.join();
  fake.be_busy(0);
  EXPECT_ALL_RANKS(has(text, "aborted, by the watchdog")) << text;
  device_->synchronize(device_->main_stream());
  host_->barrier();
}

TEST_F(Nccl, CallsThatAreInProgressAreWaitedFor) {
  const auto comm = make();
  const Fake fake;
  OnDevice<float> memory(*device_, *comm, 5);
  memory.write(std::vector<float>(5, 1.0f));
  fake.be_busy(3);
  comm->all_reduce(memory.data(), 5, DType::f32, ReduceOp::sum);
  EXPECT_ALL_RANKS(memory.read() == std::vector<float>(5, static_cast<float>(host_->size())));
  options_.timeout_seconds = 0.1;
  const auto other = make();
  fake.be_busy(1 << 30);
  const std::string text =
      words([&] { other->all_reduce(memory.data(), 4, DType::f32, ReduceOp::sum); });
  fake.be_busy(0);
  EXPECT_ALL_RANKS(has(text, "ncclAllReduce: not finished after 0.1 s")) << text;
}

// NCCL begins every call with "in progress", and the shortest sleep takes longer than the call.
TEST_F(Nccl, ACallIsAwaitedWithoutSleeping) {
  const auto comm = make();
  const Fake fake;
  const auto memory = comm->allocate(64);
  fake.shortest_wait();
  constexpr double kShortestSleep = 20e-6;
  for (int i = 0; i < 20; ++i) comm->all_reduce(memory->data(), 4, DType::f32, ReduceOp::sum);
  const double wait = fake.shortest_wait();
  print_measured("shortest time between two questions", 1e6 * wait, "us", "below", 20);
  EXPECT_ALL_RANKS(wait < kShortestSleep) << wait;
  device_->synchronize(device_->main_stream());
  host_->barrier();
}

// While a graph replays, nobody calls NCCL, and only the watchdog can see that a peer has failed.
TEST_F(Nccl, AnErrorDuringAReplayIsReportedWithinASecond) {
  const auto comm = make();
  const Fake fake;
  OnDevice<float> memory(*device_, *comm, 100);
  memory.write(std::vector<float>(100, 1.0f));
  const Stream stream(*device_);
  device_->begin_capture(stream.native());
  comm->all_reduce(memory.data(), 100, DType::f32, ReduceOp::sum);
  const NativeGraph graph = device_->end_capture(stream.native());
  std::string report;
  std::atomic<bool> reported = false;
  Watchdog dog({.timeout_seconds = 300,
                .rank = host_->rank(),
                .checks_health = true,
                .host = "node17",
                .on_timeout = [&](const std::string& text) {
                  if (!reported) report = text;
                  reported = true;
                }});
  dog.beat("step 7");
  host_->barrier();
  device_->launch(graph, stream.native());
  fake.fail(6);
  const double from = now_seconds();
  while (!reported && now_seconds() - from < 10)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const double took = now_seconds() - from;
  fake.fail(0);
  print_measured("an error of NCCL until its report", took, "s", "below", 1);
  EXPECT_ALL_RANKS(took < 1) << took;
  for (const char* part :
       {"phase \"step 7\"", "NCCL on dp", "remote process exited", "exit code 5"})
    EXPECT_ALL_RANKS(has(report, part)) << part << " in " << report;
  host_->barrier();
  stream.synchronize();
  device_->destroy(graph);
  host_->barrier();
}

// Nothing on the emulated GPU runs before somebody waits, so our wait() must not wait either.
TEST_F(Nccl, TheHostWaitsForNothing) {
  const auto comm = make();
  OnDevice<float> memory(*device_, *comm, 1000);
  memory.write(std::vector<float>(1000, 1.0f));
  Event after(*device_);
  comm->all_reduce(memory.data(), 1000, DType::f32, ReduceOp::sum);
  comm->all_gather(memory.data(), 1000 / static_cast<std::size_t>(comm->size()), DType::f32);
  after.record(Stream(*device_));
  EXPECT_ALL_RANKS(!after.complete());
  memory.fetch();
  EXPECT_ALL_RANKS(memory.fetched()[0] == static_cast<float>(comm->size()));
  EXPECT_ALL_RANKS(after.complete());
}

// The stand-in adds from rank 0 upward, so a sum that is not ours would have other bits.
TEST_F(Nccl, TreeSumsOfAnyCount) {
  const auto comm = make();
  const auto ranks = static_cast<std::size_t>(comm->size());
  bool order_shows = false;
  for (const std::size_t count : {1u, 31u, 32u, 33u, 127u, 128u, 129u, 5000u}) {
    OnDevice<float> memory(*device_, *comm, count);
    std::vector<float> mine(count), chain(count, 0.0f);
    const auto expected = host_->allocate(count * sizeof(float));
    for (std::size_t i = 0; i < count; ++i) {
      mine[i] = static_cast<float*>(expected->data())[i] = wild<float>(host_->rank(), i);
      for (std::size_t p = 0; p < ranks; ++p) chain[i] += wild<float>(static_cast<int>(p), i);
    }
    host_->all_reduce(expected->data(), count, DType::f32, ReduceOp::sum, Summation::tree);
    memory.write(mine);
    comm->all_reduce(memory.data(), count, DType::f32, ReduceOp::sum, Summation::tree);
    const std::vector<float> got = memory.read();
    EXPECT_ALL_RANKS(std::memcmp(got.data(), expected->data(), count * sizeof(float)) == 0)
        << count;
    order_shows |= std::memcmp(got.data(), chain.data(), count * sizeof(float)) != 0;
  }
  EXPECT_EQ(order_shows, ranks > 3) << "the numbers tell the two orders apart";
}

TEST_F(Nccl, WhatItCannotSumIsRefusedByName) {
  const auto comm = make();
  const auto memory = comm->allocate(64);
  std::string text;
  try {
    comm->all_reduce(memory->data(), 8, DType::bf16, ReduceOp::sum, Summation::tree);
  } catch (const DeckError& error) {
    text = std::string(error.what()) + error.hint();
  }
  EXPECT_ALL_RANKS(comm->size() == 1 || has(text, "reproducible sums of bf16")) << text;
  EXPECT_ALL_RANKS(
      has(words([&] { comm->all_reduce(memory->data(), 8, DType::u16, ReduceOp::sum); }),
          "no type for u16"));
}

}  // namespace
}  // namespace choir::test
