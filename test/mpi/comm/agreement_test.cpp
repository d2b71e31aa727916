#include "src/comm/agreement.hpp"

#include <gtest/gtest.h>

#include "test/mpi/comm/kinds.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {
namespace {

TEST(Together, NothingHappensWhenNobodyFails) {
  const auto comm = make_kind("mpi");
  int ran = 0;
  together(*comm, [&] { ++ran; });
  EXPECT_ALL_RANKS(ran == 1);
}

TEST(Together, OneFailureIsEverybodysError) {
  const auto comm = make_kind("mpi");
  const int bad = comm->size() - 1;
  std::string text, hint;
  try {
    together(*comm, [&] {
      if (comm->rank() == bad) throw DataError("tokens.bin is truncated", "copy it again");
    });
  } catch (const DataError& error) {
    text = error.what();
    hint = error.hint();
  }
  EXPECT_ALL_RANKS(text.find("tokens.bin is truncated") != std::string::npos) << text;
  EXPECT_ALL_RANKS(hint == "copy it again") << hint;
  const std::string prefix = "rank " + std::to_string(bad) + " on ";
  EXPECT_ALL_RANKS(comm->size() == 1 || text.starts_with(prefix)) << text;
}

TEST(Together, AnErrorThatAllRanksShareNamesNone) {
  const auto comm = make_kind("mpi");
  const auto raised = [&](const std::string& text, const std::string& hint) -> std::string {
    try {
      together(*comm, [&] { throw DeckError(text, hint); });
    } catch (const DeckError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_ALL_RANKS(raised("bad key", "rename it") == "bad key");
  if (comm->size() < 2) return;
  const std::string number = std::to_string(comm->rank());
  const std::string count = "(" + std::to_string(comm->size()) + " of ";
  for (const std::string& text : {raised("bad key " + number, ""), raised("bad key", number)})
    EXPECT_ALL_RANKS(text.starts_with("rank 0 on ") && text.find(count) != std::string::npos)
        << text;
}

TEST(Together, TheLowestFailingRankSpeaks) {
  const auto comm = make_kind("mpi");
  if (comm->size() < 3) GTEST_SKIP() << "needs 3 or more ranks";
  ExitCode code = ExitCode::done;
  std::string text;
  try {
    together(*comm, [&] {
      if (comm->rank() == 1) throw StorageError("disk full");
      if (comm->rank() == 2) throw DeckError("bad key");
    });
  } catch (const Error& error) {
    code = error.code();
    text = error.what();
  }
  EXPECT_ALL_RANKS(code == ExitCode::storage);
  EXPECT_ALL_RANKS(text.starts_with("rank 1 on ") && text.find("disk full") != std::string::npos &&
                   text.find("(2 of ") != std::string::npos)
      << text;
}

TEST(Together, ForeignExceptionsAreCarriedToo) {
  const auto comm = make_kind("mpi");
  std::string text;
  try {
    together(*comm, [&] {
      if (comm->rank() == 0) throw std::runtime_error("out of cheese");
    });
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_ALL_RANKS(text.find("out of cheese") != std::string::npos) << text;
}

TEST(RequireEqual, NamesTheMinority) {
  const auto comm = make_kind("mpi");
  require_equal(*comm, 42, "parameters");
  if (comm->size() < 3) GTEST_SKIP() << "needs 3 or more ranks";
  std::string text;
  try {
    require_equal(*comm, comm->rank() == 1 ? 43 : 42, "parameters after step 7");
  } catch (const CommError& error) {
    text = error.what();
  }
  EXPECT_ALL_RANKS(text.find("parameters after step 7") != std::string::npos &&
                   text.find("rank(s) 1 disagree") != std::string::npos)
      << text;
}

TEST(RequireEqual, TwoRanksThatDiffer) {
  const auto comm = make_kind("mpi");
  if (comm->size() != 2) GTEST_SKIP() << "needs 2 ranks";
  bool thrown = false;
  try {
    require_equal(*comm, static_cast<std::uint64_t>(comm->rank()), "parameters");
  } catch (const CommError&) {
    thrown = true;
  }
  EXPECT_ALL_RANKS(thrown);
}

TEST(StepVerdicts, AreTheSameEverywhere) {
  const auto comm = make_kind("mpi");
  const int last = comm->size() - 1;
  EXPECT_ALL_RANKS(agree(*comm, {}) == StepVerdict{});
  StepVerdict mine;
  if (comm->rank() == last) {
    mine.stop = 2;
    mine.nonfinite = true;
    mine.failure = ExitCode::resubmit;
  }
  if (comm->rank() == 0) mine.failure = ExitCode::numeric;
  const StepVerdict all = agree(*comm, mine);
  EXPECT_ALL_RANKS(all.stop == 2 && all.nonfinite);
  EXPECT_ALL_RANKS(all.failing_rank == 0 && all.failure == ExitCode::numeric);
}

TEST(StepVerdicts, AFailureIsRaisedOnEveryRank) {
  const auto comm = make_kind("mpi");
  const int bad = comm->size() - 1;
  std::exception_ptr error;
  StepVerdict mine;
  if (comm->rank() == bad) {
    error = std::make_exception_ptr(NumericError("loss is NaN"));
    mine.failure = ExitCode::numeric;
  }
  const StepVerdict all = agree(*comm, mine);
  bool thrown = false;
  try {
    raise_agreed(*comm, all, error);
  } catch (const NumericError& raised) {
    thrown = std::string(raised.what()).find("loss is NaN") != std::string::npos;
  }
  EXPECT_ALL_RANKS(thrown);
}

}  // namespace
}  // namespace choir::test
