// The two orders of a head's coordinates that models with RoPE come in (Rope::Style), and a profile brought from one to
// the other. The same model's queries and keys differ by that order alone; its values do not.
#ifndef SEINE_PROFILE_LAYOUT_H_
#define SEINE_PROFILE_LAYOUT_H_

#include <Eigen/Core>
#include <memory>

#include "profile/profile.h"
#include "profile/rope.h"

namespace seine {

// A mean or a second moment of queries or keys whose pairs lie as `from` says, with them as `to` says: coordinates
// from.first(i), from.second(i) become to.first(i), to.second(i).
Eigen::VectorXd InLayout(const Eigen::VectorXd& mean, const Rope& from, const Rope& to);
Eigen::MatrixXd InLayout(const Eigen::MatrixXd& moment, const Rope& from, const Rope& to);

// The RoPE in whose layout a profile's moments have to be read for vectors of `rope`: its own, or, where either states
// none or does not turn, `rope`, for then there are no pairs to go by and the coordinates are taken as they are.
Rope LayoutOf(const Profile& profile, const Rope& rope);

// The profile with moments in the layout of `rope`; itself where they are.
std::shared_ptr<const Profile> InLayout(std::shared_ptr<const Profile> profile, const Rope& rope);

}  // namespace seine

#endif  // SEINE_PROFILE_LAYOUT_H_
