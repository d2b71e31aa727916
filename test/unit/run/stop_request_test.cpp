// Stop requests, with real signals.
#include "src/run/stop_request.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

TEST(StopRequest, Signals) {
  StopRequest stop(0, 0, "");
  EXPECT_EQ(stop.poll(0), Stop::none);
  raise(SIGUSR1);
  EXPECT_EQ(stop.poll(0), Stop::user);
  EXPECT_TRUE(stop.reason(Stop::user).starts_with("asked by SIGUSR1 (Ctrl-C to jobs/launch"));
  EXPECT_EQ(stop.poll(0), Stop::user) << "a request stands until it is followed";
  raise(SIGTERM);
  EXPECT_EQ(stop.poll(0), Stop::terminate) << "the stronger wins";
  EXPECT_EQ(stop.reason(Stop::terminate),
            "stopped from outside (SIGTERM, which mpiexec sends on Ctrl-C)");
}

TEST(StopRequest, StartsCleanAndRestoresHandlers) {
  {
    StopRequest stop(0, 0, "");
    raise(SIGINT);
    EXPECT_EQ(stop.poll(0), Stop::interrupt);
    EXPECT_EQ(stop.reason(Stop::interrupt), "stopped by Ctrl-C (SIGINT)");
  }
  struct sigaction action {};
  sigaction(SIGUSR1, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
  StopRequest fresh(0, 0, "");
  EXPECT_EQ(fresh.poll(0), Stop::none);
}

TEST(StopRequest, RequestsBeforeAndAfterDoNotEndTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    hold_stop_requests();
    raise(SIGUSR1);
    bool kept = false;
    {
      StopRequest stop(0, 0, "");
      kept = stop.poll(0) == Stop::user;
    }
    raise(SIGUSR1);
    _exit(kept ? 7 : 8);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(StopRequest, SecondInterruptEndsTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    StopRequest stop(0, 0, "");
    raise(SIGINT);
    raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

TEST(StopRequest, WhileARunStartsTheProcessEndsAtOnce) {
  for (const bool polled : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      StopRequest stop(0, 0, "");
      stop.obey_at_once();
      if (polled) stop.poll(0);
      raise(SIGTERM);
      _exit(stop.poll(0) == Stop::terminate ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), polled ? 0 : 128 + SIGTERM);
  }
}

TEST(StopRequest, WalltimeLooksAhead) {
  StopRequest stop(100, 30, "");
  EXPECT_EQ(stop.poll(0), Stop::none);
  EXPECT_EQ(stop.poll(69), Stop::none);
  EXPECT_EQ(stop.poll(71), Stop::walltime) << "the next step would eat into the margin";
  EXPECT_EQ(stop.reason(Stop::walltime), "walltime of 1m 40s")
      << "also when another rank's clock was first";
}

TEST(StopRequest, FileIsConsumed) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/stop_now";
  StopRequest stop(0, 0, path);
  EXPECT_EQ(stop.poll(0), Stop::none);
  std::ofstream(path) << "x";
  EXPECT_EQ(stop.poll(0), Stop::file);
  EXPECT_EQ(stop.reason(Stop::file), "stop file " + path);
  EXPECT_FALSE(std::filesystem::exists(path)) << "or the next run would stop at once";
}

}  // namespace
}  // namespace choir
