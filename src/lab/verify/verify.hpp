#pragma once
// Verification that a deck trains the same in every layout: a run of one rank is compared with runs
// of up to all ranks of the job in every loss, norm, parameter, gradient and moment. A layout uses
// the first ranks while the others sleep. Output of `choir verify`: the header, one row per layout,
// the verdict.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/watch/watchdog.hpp"
#include "src/lab/verify/verify_layout.hpp"
#include "src/lab/verify/verify_record.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

/// Returns the deck in the form that verify runs: one precision (fp64 on the CPU), learning rates
/// that do not depend on the data-parallel size, a vocabulary size if only the data would define
/// it, and a fixed batch. `notes` lists the changes. Local. Throws DeckError.
Deck verify_deck(const Deck& deck, TrainPrecision precision, std::vector<std::string>& notes);

struct VerifyOptions {
  int steps = 3;
};

struct VerifyRow {
  VerifyLayout layout;
  double error = 0;      ///< the largest error relative to the scale of its quantity
  double tolerance = 0;  ///< tolerance of that quantity; the worst error is the one that uses the
                         ///< largest share of it
  std::string where;     ///< "gradients/blocks.0.attention.qkv.weight", "loss of step 3"
  std::string failure;   ///< another reason to fail; empty: none
  double seconds = 0;
  bool ok() const { return failure.empty() && error <= tolerance; }
};

class Verifier {
 public:
  /// All functions are collective over `world` (MPI), which must outlive this object. `deck` comes
  /// from verify_deck().
  Verifier(const Deck& deck, const VerifyOptions& options, Communicator& world);

  ~Verifier();

  /// Runs one rank, and the further runs that the tolerances need.
  void run_reference();
  const ByQuantity<double>& tolerances() const { return tolerances_; }
  const RunRecord& reference() const { return reference_; }
  /// Runs a layout; the row is complete on rank 0. A layout that throws on all its ranks fails; an
  /// error on one rank alone ends the job.
  VerifyRow run(const VerifyLayout& layout);

 private:
  struct Place;
  Communicator* leading(int ranks);
  void leave_place(const VerifyLayout& layout, const Deck& deck);
  Workplace& place_for(const VerifyLayout& layout, const Deck& deck);
  /// `last_places` > 0: the weights are perturbed in their last places with this seed.
  RunRecord record(const Deck& deck, std::uint64_t last_places = 0);
  void judge(const RunDistance& distance, VerifyRow& row) const;
  void wait_for_all(const VerifyLayout& layout, const std::string& failure);

  Deck deck_;
  VerifyOptions options_;
  Communicator* world_;
  std::vector<std::optional<std::unique_ptr<Communicator>>> leading_;  // by number of ranks
  std::unique_ptr<Place> place_;                                       // kept between layouts
  RunRecord reference_;
  ByQuantity<double> tolerances_{};
  Watchdog watchdog_;
};

/// Deck, model, batch, steps, precision and tolerances.
std::string verify_header(const Deck& deck, const VerifyOptions& options, int ranks,
                          const std::string& layouts, const std::vector<std::string>& notes,
                          const ByQuantity<double>& tolerances);

/// Formats a row: "dp=2 tp=2 pp=1 cp=1 2.2e-16 of 1e-12 at loss of step 3 0.31 s ok". `width` is
/// that of the first column.
std::string to_string(const VerifyRow& row, std::size_t width);
/// One JSON object without a line end.
std::string to_json(const VerifyRow& row);

/// "VALID: 32 layouts ..." or "INVALID: 2 of 32 layouts ...".
std::string verdict(const std::vector<VerifyRow>& rows);
bool valid(const std::vector<VerifyRow>& rows);

}  // namespace choir
