#pragma once
// Output of `choir verify`: the header, one row per layout, the verdict.
#include <string>
#include <vector>

#include "choir/lab/verify/verify.hpp"

namespace choir {

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
