// The main of both test programs, for any number of ranks. Rank 0 prints as GoogleTest does; the
// others print failures only, with their rank. A test has failed when it failed anywhere, all ranks
// return the same code, and a test that hangs is named and ends the run.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mpi/mpi_api.hpp"
#include "choir/comm/mpi/mpi_session.hpp"
#include "choir/comm/watch/watchdog.hpp"

namespace {

std::string full_name(const testing::TestInfo& test) {
  return std::string(test.test_suite_name()) + "." + test.name();
}

class OtherRanksPrinter : public testing::EmptyTestEventListener {
 public:
  explicit OtherRanksPrinter(const choir::MpiSession& mpi) : mpi_(mpi) {}

 private:
  // Asking GoogleTest for the current test inside OnTestPartResult would take its mutex twice.
  void OnTestStart(const testing::TestInfo& test) override { test_ = full_name(test); }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("[rank %d of %d] %s:%d: Failure in %s\n%s\n", mpi_.rank(), mpi_.size(),
                result.file_name() != nullptr ? result.file_name() : "?", result.line_number(),
                test_.c_str(), result.message());
    std::fflush(stdout);
  }
  const choir::MpiSession& mpi_;
  std::string test_ = "set-up";
};

// After each test the ranks compare notes: a test counts as failed when it failed on any of them.
class Verdict : public testing::EmptyTestEventListener {
 public:
  Verdict(const choir::MpiSession& mpi, double timeout)
      : mpi_(mpi), watchdog_({timeout, mpi.rank(), mpi.host(), {}}) {}
  int passed() const { return passed_; }
  const std::vector<std::string>& failed() const { return failed_; }

 private:
  void OnTestStart(const testing::TestInfo& test) override {
    watchdog_.beat("test " + full_name(test));
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    int bad = test.result()->Failed() ? 1 : 0;
    if (mpi_.size() > 1) MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    watchdog_.rest();
    if (bad == 0 && !test.result()->Skipped()) ++passed_;
    if (bad == 0) return;
    failed_.push_back(full_name(test));
    if (mpi_.rank() == 0 && mpi_.size() > 1)
      std::printf("[  FAILED  ] %s on %d of %d ranks\n", full_name(test).c_str(), bad, mpi_.size());
  }
  const choir::MpiSession& mpi_;
  choir::Watchdog watchdog_;
  int passed_ = 0;
  std::vector<std::string> failed_;
};

double timeout_of_a_test() {
  const char* text = std::getenv("CHOIR_TEST_TIMEOUT");  // seconds; 0 for debuggers
  return text != nullptr ? std::atof(text) : 120.0;
}

}  // namespace

int main(int argc, char** argv) {
  choir::MpiSession mpi(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (mpi.rank() > 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new OtherRanksPrinter(mpi));
  }
  auto* verdict = new Verdict(mpi, timeout_of_a_test());  // GoogleTest owns it
  listeners.Append(verdict);
  int code = RUN_ALL_TESTS();
  // Failures outside of tests (set-up of a suite) are in `code` alone.
  MPI_Allreduce(MPI_IN_PLACE, &code, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (!verdict->failed().empty()) code = 1;
  if (mpi.rank() == 0) {
    for (const std::string& name : verdict->failed()) std::printf("FAILED: %s\n", name.c_str());
    std::printf("ranks=%d: %d passed, %zu failed\n", mpi.size(), verdict->passed(),
                verdict->failed().size());
    std::fflush(stdout);
  }
  return code;
}
