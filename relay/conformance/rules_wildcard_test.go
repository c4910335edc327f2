package conformance_test

import "testing"

// Conversations in testdata/transcripts/rules.

func TestR047_StarSubscribesToAll(t *testing.T)                { transcript(t) }
func TestR048_FirstEmptyRequestIsWildcard(t *testing.T)        { transcript(t) }
func TestR049_SotWSequence(t *testing.T)                       { transcript(t) }
func TestR050_DeltaSequence(t *testing.T)                      { transcript(t) }
func TestR051_NamesEndTheLegacyMeaning(t *testing.T)           { transcript(t) }
func TestR053_MembersCannotBeUnsubscribed(t *testing.T)        { transcript(t) }
func TestR053_SotWListBesideStarTakesNothingAway(t *testing.T) { transcript(t) }
func TestR055_MixedFleet(t *testing.T)                         { transcript(t) }
func TestB22_OverlappingLists(t *testing.T)                    { transcript(t) }
func TestC17_SubscribeAndUnsubscribeAtOnce(t *testing.T)       { transcript(t) }
func TestC16_EmptyIsNotAll(t *testing.T)                       { transcript(t) }
