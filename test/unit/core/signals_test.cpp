// Tests of signals: the thread that receives them, the stack of their handlers, and the mask of
// children.
#include "src/core/signals.hpp"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.hpp"
#include "src/core/process.hpp"

namespace choir {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

std::atomic<int> calls{0}, calls_elsewhere{0};
std::atomic<pid_t> last_thread{0};

extern "C" void note_call(int) {
  stack_t stack{};
  sigaltstack(nullptr, &stack);
  if ((stack.ss_flags & SS_ONSTACK) == 0) ++calls_elsewhere;
  last_thread = static_cast<pid_t>(syscall(SYS_gettid));
  ++calls;
}

/// A handler that is installed as long as this object lives.
class Handler {
 public:
  Handler(int number, int flags) : number_(number) {
    calls = calls_elsewhere = 0;
    last_thread = 0;
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART | flags;
    action.sa_handler = note_call;
    sigaction(number, &action, &before_);
  }
  ~Handler() { sigaction(number_, &before_, nullptr); }
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

 private:
  int number_;
  struct sigaction before_ {};
};

bool blocked(int number) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, number) == 1;
}

bool wait_for_calls(int most) {
  for (int i = 0; i < 1000 && calls < most; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return calls >= most;
}

TEST(SignalThread, TakesWhatIsSentToTheProcess) {
  const Handler handler(SIGUSR2, 0);
  const SignalThread signals;
  kill(getpid(), SIGUSR2);
  ASSERT_TRUE(wait_for_calls(1));
  EXPECT_NE(last_thread, static_cast<pid_t>(syscall(SYS_gettid)));
}

TEST(SignalThread, AllThreadsStartedWhileItLivesBlockAllButCrashesAndTheProfiler) {
  const bool before = blocked(SIGTERM);
  {
    const SignalThread signals;
    const auto expect_mask = [] {
      for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGCHLD, SIGWINCH, SIGCONT,
                               SIGALRM, SIGHUP, SIGQUIT, SIGPIPE, SIGRTMIN, SIGRTMAX})
        EXPECT_TRUE(blocked(number)) << number;
      for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF})
        EXPECT_FALSE(blocked(number)) << number;
    };
    expect_mask();
    std::thread(expect_mask).join();
  }
  EXPECT_EQ(blocked(SIGTERM), before);
}

TEST(SignalThread, ChildrenHaveTheMaskFromBefore) {
  const std::string command = "grep SigBlk /proc/self/status";
  const std::string before = run_program({"sh", "-c", command}, "dash");
  const SignalThread signals;
  EXPECT_EQ(run_program({"sh", "-c", command}, "dash"), before);
  const pid_t child = fork();
  if (child == 0) _exit(blocked(SIGTERM) ? 1 : 0);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(SignalThread, ProgramsThatAreStartedEndByABrokenPipe) {
  const auto pipe_before = std::signal(SIGPIPE, SIG_DFL);
  const auto size_before = std::signal(SIGXFSZ, SIG_DFL);
  turn_signals_of_writes_into_errors();
  const std::string ignored = run_program(
      {"sh", "-c", "sed -n 's/^SigIgn:.*\\(.\\{4\\}\\)$/\\1/p' /proc/self/status"}, "dash");
  EXPECT_EQ(std::stoi(ignored, nullptr, 16) & (1 << (SIGPIPE - 1)), 0) << ignored;
  std::signal(SIGPIPE, pipe_before);
  std::signal(SIGXFSZ, size_before);
}

TEST(SignalThread, HandlersOfLibrariesGetTheAlternateStack) {
  const Handler handler(SIGUSR2, 0);
  use_alternate_stacks();
  struct sigaction action {};
  sigaction(SIGUSR2, nullptr, &action);
  EXPECT_NE(action.sa_flags & SA_ONSTACK, 0);
  EXPECT_NE(action.sa_flags & SA_RESTART, 0);
  EXPECT_EQ(action.sa_handler, note_call);
}

TEST(AlternateSignalStack, BelongsToItsThread) {
  const Handler handler(SIGUSR2, SA_ONSTACK);
  const AlternateSignalStack outer;
  const auto call = [] {
    const AlternateSignalStack inner;  // the thread already has one
    raise(SIGUSR2);
  };
  call();
  raise(SIGUSR2);  // that of `outer` is still installed
  std::thread(call).join();
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(calls_elsewhere, 0);
}

/// Sends SIGPROF to each other thread of the process, one after the other, without a pause.
class Profiler {
 public:
  Profiler() : thread_([this] { run(); }) {}
  ~Profiler() {
    end_ = true;
    thread_.join();
  }
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

 private:
  void run() const {
    const auto own = static_cast<pid_t>(syscall(SYS_gettid));
    while (!end_)
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        const pid_t thread = std::stoi(task.path().filename().string());
        if (thread != own) syscall(SYS_tgkill, getpid(), thread, SIGPROF);
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
  }

  std::atomic<bool> end_{false};
  std::thread thread_;
};

std::vector<float> product(int threads) {
  constexpr std::int64_t kSize = 320;  // oneDNN multiplies blocks of more than 252 on a heap buffer
  static const std::vector<float> a(kSize * kSize, 1.0f / 3), b(kSize * kSize, 0.7f);
  std::vector<float> c(kSize * kSize);
  PlanCache plans;
  GemmArgs args{.m = kSize, .n = kSize, .k = kSize};
  args.transpose_b = true;
  args.a = a.data(), args.b = b.data(), args.c = c.data();
  omp_set_num_threads(threads);
  for (int i = 0; i < 20; ++i) gemm_cpu(plans, args);
  return c;
}

// Teams that shrink end threads, and teams that grow start threads, which need a stack, too.
TEST(AlternateSignalStack, AProfilerChangesNoBitOfProductsOnTeamsOfAnySize) {
  if (kSanitized) GTEST_SKIP() << "sanitizers start threads themselves";
  const int threads_before = omp_get_max_threads();
  std::vector<std::vector<float>> expected;
  for (int threads = 1; threads <= 4; ++threads) expected.push_back(product(threads));
  {
    const AlternateSignalStack stack;
    const Handler handler(SIGPROF, SA_ONSTACK);
    const Profiler profiler;
    for (const int threads : {4, 1, 3, 2, 4, 1, 2})
      EXPECT_EQ(product(threads), expected[static_cast<std::size_t>(threads - 1)]) << threads;
    EXPECT_TRUE(wait_for_calls(200));
    // A thread has its stack from shortly after its start until shortly before its end. Teams of
    // these sizes start at most 8 threads, and pending signals of one kind count as one.
    EXPECT_LE(calls_elsewhere, 8 * 2 * 2) << "of " << calls;
  }
  omp_set_num_threads(threads_before);
}

}  // namespace
}  // namespace choir
