#pragma once
// Whether a layout computed what one rank computes: its first losses, norms of the gradient and
// gradients of single tensors against a reference of the same global batch, within what rounding
// explains. Pure.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace choir {

/// Relative, the worst of the first steps (of the tensors); infinite where something is no number.
/// Gradients of tensors are relative to their norm, but not to less than 1/1000 of the largest: one
/// that is nothing but rounding has no digits to compare.
struct Departure {
  double loss = 0, norm = 0, gradient = 0;
  std::string loss_at, norm_at, gradient_at;  ///< "the loss 4.2 at step 0, of one rank 4.1"
};

/// Of objects of `choir bench step --json`. Throws json::exception where fields are missing.
Departure departure_of(const nlohmann::json& run, const nlohmann::json& reference);

/// Four times what the reference departs from itself when each of its weights is moved by one unit
/// in the last place (`moved`, runs of --last-place). Why that bounds a layout: what it does
/// otherwise is to round, differently, what its products and sums give, each by at most half such a
/// unit and independently from token to token, while a weight that was moved is moved for all
/// tokens alike. Nothing is held to less than the rounding of one sum, 2^-24 (fp64: 2^-53).
Departure allowed_departure(const nlohmann::json& reference,
                            const std::vector<nlohmann::json>& moved);

/// The larger of each, with its place.
Departure worst_of(const Departure& a, const Departure& b);

/// What is further off than allowed, in words.
std::vector<std::string> complaints_about(const Departure& departure, const Departure& allowed);

}  // namespace choir
