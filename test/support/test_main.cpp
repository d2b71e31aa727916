// The main function of both test programs, for any number of ranks. Rank 0 prints as GoogleTest
// does; the others print only failures, with their rank. A test has failed if it failed on any
// rank, and it was skipped if every rank skipped it; all ranks return the same code. A test that
// hangs is named and ends the run. CHOIR_TEST_OUTCOMES names a file to which each test adds a line,
// "ran", tab, NAME or "skipped", tab, NAME, tab, REASON: test/run_all.sh finds in it the tests that
// none of its runs executed.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/comm/watch/watchdog.hpp"

namespace {

std::string full_name(const testing::TestInfo& test) {
  return std::string(test.test_suite_name()) + "." + test.name();
}

class OtherRanksPrinter : public testing::EmptyTestEventListener {
 public:
  explicit OtherRanksPrinter(const choir::MpiSession& mpi) : mpi_(mpi) {}

 private:
  // A query for the current test inside OnTestPartResult would lock GoogleTest's mutex twice.
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

/// The first line of the reason for which a test is skipped.
std::string reason_of(const testing::TestResult& result) {
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    if (!part.skipped()) continue;
    const std::string text = part.message();
    const std::size_t first = text.find_first_not_of('\n');
    if (first == std::string::npos) return "no reason given";
    return text.substr(first, text.find('\n', first) - first);
  }
  return "another rank ran it";
}

// After each test the ranks compare results: a test has failed if it failed on any of them.
class Verdict : public testing::EmptyTestEventListener {
 public:
  Verdict(const choir::MpiSession& mpi, double timeout)
      : mpi_(mpi), watchdog_({timeout, mpi.rank(), false, mpi.host(), {}}) {}
  int passed() const { return passed_; }
  int skipped() const { return skipped_; }
  const std::vector<std::string>& failed() const { return failed_; }

 private:
  void OnTestStart(const testing::TestInfo& test) override {
    watchdog_.beat("test " + full_name(test));
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    int ranks[] = {test.result()->Failed() ? 1 : 0, test.result()->Skipped() ? 1 : 0};
    if (mpi_.size() > 1) MPI_Allreduce(MPI_IN_PLACE, ranks, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    watchdog_.rest();
    const auto [bad, skipping] = ranks;
    const bool skipped = skipping == mpi_.size();
    if (mpi_.rank() == 0) record(test, skipped);
    if (bad == 0) ++(skipped ? skipped_ : passed_);
    if (bad == 0) return;
    failed_.push_back(full_name(test));
    if (mpi_.rank() == 0 && mpi_.size() > 1)
      std::printf("[  FAILED  ] %s on %d of %d ranks\n", full_name(test).c_str(), bad, mpi_.size());
  }
  static void record(const testing::TestInfo& test, bool skipped) {
    const char* path = std::getenv("CHOIR_TEST_OUTCOMES");
    std::FILE* file = path != nullptr ? std::fopen(path, "a") : nullptr;
    if (file == nullptr) return;
    const std::string reason = skipped ? "\t" + reason_of(*test.result()) : "";
    std::fprintf(file, "%s\t%s%s\n", skipped ? "skipped" : "ran", full_name(test).c_str(),
                 reason.c_str());
    std::fclose(file);
  }
  const choir::MpiSession& mpi_;
  choir::Watchdog watchdog_;
  int passed_ = 0, skipped_ = 0;
  std::vector<std::string> failed_;
};

/// A folder for the temporary files of this run, the same on all ranks; it is removed at the end.
/// Tests may use the same names of files as those of another run.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const choir::MpiSession& mpi) : owner_(mpi.rank() == 0) {
    std::string form = (std::filesystem::temp_directory_path() / "choir_tests_").string();
    form += std::string(6, 'X');  // the mark that mkdtemp replaces
    if (owner_ && mkdtemp(form.data()) == nullptr) {
      std::printf("FAILED: no folder %s can be made; set TMPDIR to one that can be written\n",
                  form.c_str());
      std::fflush(stdout);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    auto length = static_cast<int>(form.size());
    MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
    form.resize(static_cast<std::size_t>(length));
    MPI_Bcast(form.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD);
    path_ = form;
    setenv("TMPDIR", form.c_str(), 1);
    setenv("TEST_TMPDIR", (form + "/").c_str(), 1);  // the value of testing::TempDir()
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (owner_) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

 private:
  bool owner_;
  std::filesystem::path path_;
};

double timeout_of_a_test() {
  const char* text = std::getenv("CHOIR_TEST_TIMEOUT");  // seconds; 0 for debuggers
  return text != nullptr ? std::atof(text) : 120.0;
}

}  // namespace

int main(int argc, char** argv) {
  choir::MpiSession mpi(&argc, &argv);
  const TemporaryFolder temporary(mpi);
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (mpi.rank() > 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new OtherRanksPrinter(mpi));
  }
  auto* verdict = new Verdict(mpi, timeout_of_a_test());  // GoogleTest owns it
  listeners.Append(verdict);
  int code = RUN_ALL_TESTS();
  // Failures outside of tests (set-up of a suite) are only in `code`.
  MPI_Allreduce(MPI_IN_PLACE, &code, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (!verdict->failed().empty()) code = 1;
  if (mpi.rank() == 0) {
    for (const std::string& name : verdict->failed()) std::printf("FAILED: %s\n", name.c_str());
    std::printf("ranks=%d: %d passed, %zu failed, %d skipped\n", mpi.size(), verdict->passed(),
                verdict->failed().size(), verdict->skipped());
    std::fflush(stdout);
  }
  return code;
}
