//! How the leader of a classic group divides one topic: evenly, and with as few moves as possible.

use std::collections::HashSet;

use crate::group_messages::Owner;

/// The fewest and the most partitions that one of `members` gets.
pub(crate) fn shares(partitions: usize, members: usize) -> (usize, usize) {
    let members = members.max(1);
    (partitions / members, partitions.div_ceil(members))
}

/// Assigns the partitions `0..partitions`. With `cooperative`, a partition that another member owns is left
/// out: its owner gives it up first, and rejoins.
pub(crate) fn assign(members: Vec<Owner>, partitions: i32, cooperative: bool) -> Vec<Owner> {
    let (least, most) = shares(partitions as usize, members.len());
    let mut larger = partitions as usize - least * members.len();
    let mut members = members;
    // Those that own most get the larger shares, so that fewer partitions move.
    members.sort_by(|(a, owned_a), (b, owned_b)| owned_b.len().cmp(&owned_a.len()).then(a.cmp(b)));

    let mut owned = HashSet::new();
    let mut kept = HashSet::new();
    let mut quotas = Vec::with_capacity(members.len());
    for (_, mine) in &mut members {
        owned.extend(mine.iter().copied());
        let quota = if larger > 0 { most } else { least };
        larger = larger.saturating_sub(1);
        mine.retain(|partition| (0..partitions).contains(partition) && !kept.contains(partition));
        mine.truncate(quota);
        kept.extend(mine.iter().copied());
        quotas.push(quota);
    }
    let mut free = (0..partitions).filter(|partition| !kept.contains(partition));
    for ((_, mine), quota) in members.iter_mut().zip(quotas) {
        let more: Vec<_> = free.by_ref().take(quota - mine.len()).collect();
        mine.extend(
            more.into_iter()
                .filter(|partition| !(cooperative && owned.contains(partition))),
        );
    }
    members
}

#[cfg(test)]
mod tests {
    //! If these failed, a group would never settle, or more partitions would move than must.
    use super::*;

    fn members(owned: &[&[i32]]) -> Vec<Owner> {
        let named = owned.iter().enumerate();
        named
            .map(|(number, owned)| (format!("m{number}"), owned.to_vec()))
            .collect()
    }

    fn assigned(owned: &[&[i32]], partitions: i32, cooperative: bool) -> Vec<Owner> {
        let mut assigned = assign(members(owned), partitions, cooperative);
        assigned.sort();
        assigned
    }

    #[test]
    fn each_partition_has_one_owner() {
        assert_eq!(
            assigned(&[&[], &[], &[]], 7, false),
            members(&[&[0, 1, 2], &[3, 4], &[5, 6]])
        );
        assert_eq!(assigned(&[&[], &[]], 1, true), members(&[&[0], &[]]));
    }

    #[test]
    fn a_lost_members_partitions_go_to_the_others() {
        assert_eq!(
            assigned(&[&[0, 1], &[4, 5]], 6, true),
            members(&[&[0, 1, 2], &[4, 5, 3]])
        );
    }

    #[test]
    fn a_cooperative_owner_gives_up_first() {
        assert_eq!(
            assigned(&[&[0, 1, 2], &[3, 4, 5], &[]], 6, true),
            members(&[&[0, 1], &[3, 4], &[]])
        );
        assert_eq!(
            assigned(&[&[0, 1], &[3, 4], &[]], 6, true),
            members(&[&[0, 1], &[3, 4], &[2, 5]])
        );
        // An eager member owns nothing when it joins; a claim of a past generation does not count twice.
        assert_eq!(
            assigned(&[&[0, 1], &[1, 9]], 4, false),
            members(&[&[0, 1], &[2, 3]])
        );
    }
}
