// Tests of the Chrome trace: the fields that viewers need, and the time at which it is written.
#include "src/train/loop/training_loop.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/quantities.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

TEST(Trace, IsJsonThatViewersTake) {
  const test::TemporaryDirectory folder;
  const auto world = make_mpi_communicator(MPI_COMM_SELF, "self");
  Trace trace(2, 3);
  const double start = now_seconds();
  for (std::int64_t step = 1; step <= 3; ++step) {
    EXPECT_FALSE(trace.complete());
    trace.begin_step(step);
    const double at = start + static_cast<double>(step);
    trace.span("forward", at, at + 0.25);
    trace.span("backward", at + 0.25, at + 0.75);
  }
  ASSERT_TRUE(trace.complete());
  trace.write(folder.path() + "/profile.json", *world);
  EXPECT_FALSE(trace.complete());
  std::ifstream file(folder.path() + "/profile.json");
  const auto json = nlohmann::json::parse(file);
  std::vector<nlohmann::json> spans;
  for (const auto& event : json.at("traceEvents"))
    if (event.at("ph").get<std::string>() == "X") spans.push_back(event);
  ASSERT_EQ(spans.size(), 4u) << "steps 2 and 3";
  EXPECT_EQ(spans[0].at("name"), "forward");
  EXPECT_EQ(spans[3].at("args").at("step"), 3);
  EXPECT_NEAR(spans[0].at("dur").get<double>(), 0.25e6, 1);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_GE(spans[i].at("ts").get<double>(), 0) << "viewers drop what lies before 0";
    EXPECT_NEAR(spans[i].at("ts").get<double>() - spans[0].at("ts").get<double>(),
                (std::array{0.0, 0.25e6, 1e6, 1.25e6}[i]), 1);
  }
}

TEST(Trace, OldSpansBeginAtZero) {
  const test::TemporaryDirectory folder;
  Trace trace(1, 1);
  trace.begin_step(1);
  trace.span("data", now_seconds() - 5, now_seconds() - 4);
  trace.write(folder.path() + "/profile.json", *make_mpi_communicator(MPI_COMM_SELF, "self"));
  std::ifstream file(folder.path() + "/profile.json");
  const auto json = nlohmann::json::parse(file);
  int spans = 0;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph").get<std::string>() != "X") continue;
    ++spans;
    EXPECT_EQ(event.at("ts").get<double>(), 0);
  }
  EXPECT_EQ(spans, 1);
}

TEST(Trace, ResumedBeyondTheRangeWritesNothing) {
  Trace trace(2, 3);
  trace.begin_step(500);
  EXPECT_FALSE(trace.complete()) << "would replace the trace of the run before";
}

TEST(Trace, OffKeepsNothing) {
  Trace trace(0, 0);
  trace.begin_step(0);
  EXPECT_FALSE(trace.recording());
  EXPECT_FALSE(trace.complete());
}

}  // namespace
}  // namespace choir
