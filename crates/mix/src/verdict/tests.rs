use super::*;
use crate::test_sessions::on_a_gpu;

#[test]
fn loads_on_one_link_are_limited_by_it_although_copy_engines_starve_each_other() {
    let measured = on_a_gpu();
    let judgement = judge(&measured);
    let link = Bottleneck::Resource(Resource::LinkToDevice("gpu:0".into()));
    let finding = |load: usize| {
        let mut together = judgement.verdicts.iter().filter(|verdict| verdict.when == When::Together);
        together.find(|verdict| verdict.load == load).map(|verdict| &verdict.finding)
    };
    let Some(Finding::Named(named)) = finding(0) else { panic!("{:?}", finding(0)) };
    assert_eq!(named.bottleneck, link);
    // The packets lost less beside the antagonist than a fair share, because the copy paid for it. That leaves it open.
    let Some(Finding::NotDetermined(open)) = finding(1) else { panic!("{:?}", finding(1)) };
    assert!(open.candidates.iter().any(|candidate| candidate.bottleneck == link));
}
