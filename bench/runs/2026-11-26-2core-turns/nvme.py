import subprocess,json,os,time,statistics as st,sys
bins={"old":"inlane-e5c99a6b","new":"inlane-bff33ce8"}
cases={"r4k d32":"--rw randread --bs 4K --iodepth 32","r4k d1":"--rw randread --bs 4K --iodepth 1","w4k d32":"--rw randwrite --bs 4K --iodepth 32","w4k d1":"--rw randwrite --bs 4K --iodepth 1","r128k d8":"--rw randread --bs 128K --iodepth 8"}
res={}
port=14500
for turn in range(7):
    for b in (("old","new") if turn%2==0 else ("new","old")):
        port+=1
        t=subprocess.Popen(["taskset","-c","0",bins[b],"nvme","target","--namespace","memory:256M","--listen",f"127.0.0.1:{port}"],stdout=subprocess.DEVNULL,stderr=open("nvme.err","w"))
        time.sleep(0.4)
        for c,a in cases.items():
            o=subprocess.run(["taskset","-c","1",bins[b],"nvme","bench",f"127.0.0.1:{port}",*a.split(),"--duration","1s","--json","-"],capture_output=True,text=True)
            try:
                d=json.loads(o.stdout); r=d["results"][0]
            except Exception as e:
                print(o.stderr[-500:],o.stdout[:300]); t.terminate(); sys.exit(1)
            v=r.get("operations_per_second")
            v=v["median"] if isinstance(v,dict) else v
            res.setdefault((c,b),[]).append(v)
        t.terminate(); t.wait()
for c in cases:
    o,n=res[(c,"old")],res[(c,"new")]
    print(c,f"{st.median(n)/st.median(o):.3f} old {min(o):.0f} {st.median(o):.0f} {max(o):.0f} new {min(n):.0f} {st.median(n):.0f} {max(n):.0f}")
